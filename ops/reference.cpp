// SPDX-License-Identifier: Apache-2.0
// The oracle's formulas, a row at a time.
#include "ops/reference.h"

#include <cmath>
#include <limits>
#include <vector>

namespace losstape::reference {
namespace {

using Wide = long double;

// A row's log-softmax and what goes with it.
struct Row {
  std::vector<Wide> log_p;
  Wide lse = 0;

  [[nodiscard]] Wide p(Eigen::Index j) const { return std::exp(log_p[static_cast<std::size_t>(j)]); }
  // 1 − p without cancellation.
  [[nodiscard]] Wide rest(Eigen::Index j) const { return -std::expm1(log_p[static_cast<std::size_t>(j)]); }
  [[nodiscard]] Wide entropy() const {
    Wide sum = 0;
    for (const Wide log_p_j : log_p) {
      const Wide p_j = std::exp(log_p_j);
      if (p_j != 0) sum -= p_j * log_p_j;
    }
    return sum;
  }
};

Row evaluate(const Matrix& logits, Eigen::Index r, double temperature) {
  const Eigen::Index columns = logits.cols();
  Row row;
  row.log_p.assign(static_cast<std::size_t>(columns), 0);
  Eigen::Index top = 0;
  for (Eigen::Index j = 1; j < columns; ++j) {
    if (logits(r, j) > logits(r, top) || std::isnan(logits(r, j))) top = j;
  }
  Wide highest = columns > 0 ? Wide(logits(r, top)) : Wide(0);
  if (std::isinf(highest)) highest = std::numeric_limits<Wide>::quiet_NaN();  // no distribution: everything is NaN
  const auto below = [&](Eigen::Index j) { return (Wide(logits(r, j)) - highest) / Wide(temperature); };
  Wide others = 0;  // Σ over all columns but `top`, whose own term is 1
  for (Eigen::Index j = 0; j < columns; ++j) {
    if (j != top) others += std::exp(below(j));
  }
  const Wide log_sum = std::log1p(others);
  for (Eigen::Index j = 0; j < columns; ++j) row.log_p[static_cast<std::size_t>(j)] = below(j) - log_sum;
  row.lse = highest / Wide(temperature) + log_sum;
  return row;
}

template <class Write>
Matrix gradient(const Matrix& logits, double temperature, const auto& used, const Write& write) {
  Matrix g = Matrix::Zero(logits.rows(), logits.cols());
  for (Eigen::Index r = 0; r < logits.rows(); ++r) {
    if (used(r)) write(r, evaluate(logits, r, temperature), g);
  }
  return g;
}

// The gradient of Σ adjoint · f for an f of whole rows, whose slope along column j is given.
Matrix column_gradient(const Matrix& logits, const Vector& adjoint, double temperature, const auto& slope) {
  const auto used = [&](Eigen::Index r) { return adjoint(r) != 0; };
  return gradient(logits, temperature, used, [&](Eigen::Index r, const Row& row, Matrix& g) {
    const Wide entropy = row.entropy();
    for (Eigen::Index j = 0; j < logits.cols(); ++j) {
      g(r, j) = static_cast<double>(Wide(adjoint(r)) * slope(row, entropy, static_cast<std::size_t>(j)) / Wide(temperature));
    }
  });
}

}  // namespace

Matrix log_softmax(const Matrix& logits, double temperature) {
  Matrix y(logits.rows(), logits.cols());
  for (Eigen::Index r = 0; r < logits.rows(); ++r) {
    const Row row = evaluate(logits, r, temperature);
    for (Eigen::Index j = 0; j < logits.cols(); ++j) y(r, j) = static_cast<double>(row.log_p[static_cast<std::size_t>(j)]);
  }
  return y;
}

Vector logprob(const Matrix& logits, std::span<const Index> targets, double temperature) {
  Vector y = Vector::Zero(logits.rows());
  for (Eigen::Index r = 0; r < logits.rows(); ++r) {
    const Index target = targets[static_cast<std::size_t>(r)];
    if (target >= 0) {
      y(r) = static_cast<double>(evaluate(logits, r, temperature).log_p[static_cast<std::size_t>(target)]);
    }
  }
  return y;
}

Matrix gathered(const Matrix& logits, const Ids& ids, double temperature) {
  Matrix y(ids.rows(), ids.cols());
  for (Eigen::Index r = 0; r < ids.rows(); ++r) {
    const Row row = evaluate(logits, r, temperature);
    for (Eigen::Index k = 0; k < ids.cols(); ++k) {
      y(r, k) = static_cast<double>(row.log_p[static_cast<std::size_t>(ids(r, k))]);
    }
  }
  return y;
}

Vector entropy(const Matrix& logits, double temperature) {
  Vector y(logits.rows());
  for (Eigen::Index r = 0; r < logits.rows(); ++r) {
    y(r) = static_cast<double>(evaluate(logits, r, temperature).entropy());
  }
  return y;
}

Vector lse(const Matrix& logits, double temperature) {
  Vector y(logits.rows());
  for (Eigen::Index r = 0; r < logits.rows(); ++r) y(r) = static_cast<double>(evaluate(logits, r, temperature).lse);
  return y;
}

Matrix logprob_gradient(const Matrix& logits, std::span<const Index> targets, const Vector& adjoint, double temperature) {
  Ids ids(logits.rows(), 1);
  Matrix of_target(logits.rows(), 1);
  for (Eigen::Index r = 0; r < logits.rows(); ++r) {
    const Index target = targets[static_cast<std::size_t>(r)];
    ids(r, 0) = target >= 0 ? target : 0;
    of_target(r, 0) = target >= 0 ? adjoint(r) : 0;
  }
  return gathered_gradient(logits, ids, of_target, temperature);
}

Matrix gathered_gradient(const Matrix& logits, const Ids& ids, const Matrix& adjoint, double temperature) {
  const auto used = [&](Eigen::Index r) { return (adjoint.row(r).array() != 0).any(); };
  return gradient(logits, temperature, used, [&](Eigen::Index r, const Row& row, Matrix& g) {
    // d log p_k / dx_j = [j = k] − p_j: at k itself 1 − p, elsewhere −p.
    for (Eigen::Index j = 0; j < logits.cols(); ++j) {
      const bool masked = logits(r, j) == -std::numeric_limits<double>::infinity();
      if (masked && !std::isnan(row.lse)) continue;  // no gradient, by definition
      Wide sum = 0;
      for (Eigen::Index k = 0; k < ids.cols(); ++k) sum += Wide(adjoint(r, k)) * (ids(r, k) == j ? row.rest(j) : -row.p(j));
      g(r, j) = static_cast<double>(sum / Wide(temperature));
    }
  });
}

Matrix entropy_gradient(const Matrix& logits, const Vector& adjoint, double temperature) {
  return column_gradient(logits, adjoint, temperature, [](const Row& row, Wide entropy, std::size_t j) {
    const Wide p = std::exp(row.log_p[j]);
    return p == 0 ? Wide(0) : -p * (row.log_p[j] + entropy);
  });
}

Matrix lse_gradient(const Matrix& logits, const Vector& adjoint, double temperature) {
  return column_gradient(logits, adjoint, temperature,
                         [](const Row& row, Wide /*entropy*/, std::size_t j) { return std::exp(row.log_p[j]); });
}

}  // namespace losstape::reference
