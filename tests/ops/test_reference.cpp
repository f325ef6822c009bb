// SPDX-License-Identifier: Apache-2.0
// The oracle itself: closed forms, differences of its values, and rows on which a plain fp64 formula fails.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "ops/reference.h"
#include "tests/ops/dense.h"
#include "tests/support/near.h"
#include "tests/support/random.h"

namespace losstape::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Matrix random_logits(Index T, Index V) {
  Random random(8);
  Matrix x(T, V);
  for (Index at = 0; at < x.size(); ++at) x.data()[at] = 3 * random.normal();
  return x;
}

// Σ weights · f(x), and its slope along entry (r, j) by a fourth-order difference.
double difference_of(const auto& f, Matrix x, Index r, Index j) {
  const double h = 1e-3;
  const double start = x(r, j);
  const auto at = [&](double by) {
    x(r, j) = start + by;
    return f(x);
  };
  return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
}

}  // namespace

TEST_CASE("the reference gives closed forms") {
  const Matrix x = row({0, std::log(3.0)});
  const std::vector<Index> target{1};
  CHECK(reference::logprob(x, target)(0) == relative(std::log(0.75), 1e-15));
  CHECK(reference::lse(x)(0) == relative(std::log(4.0), 1e-15));
  CHECK(reference::entropy(x)(0) == relative(-0.75 * std::log(0.75) - 0.25 * std::log(0.25), 1e-15));
  CHECK(near(reference::log_softmax(row({5, 5, 5, 5})), Matrix::Constant(1, 4, -std::log(4.0)), 1e-15));
  CHECK(near(reference::log_softmax(row({2, 0}), 0.5), row({-std::log1p(std::exp(-4.0)), -4 - std::log1p(std::exp(-4.0))}),
             1e-15));
  CHECK(reference::logprob(x, std::vector<Index>{-1})(0) == 0);
}

TEST_CASE("the reference's gradients are the differences of its values") {
  const Matrix x = random_logits(3, 6);
  const std::vector<Index> targets{4, -1, 0};
  reference::Ids ids(3, 2);
  ids << 1, 1, 0, 5, 3, 2;
  const reference::Vector g = Eigen::Vector3d(1.5, -2, 0.25);
  const Matrix k = rows({{1, 2}, {-0.5, 0.75}, {0, 3}});
  for (const double T : {1.0, 0.6}) {
    const std::array<Matrix, 4> found{reference::logprob_gradient(x, targets, g, T), reference::entropy_gradient(x, g, T),
                                      reference::lse_gradient(x, g, T), reference::gathered_gradient(x, ids, k, T)};
    for (Index r = 0; r < 3; ++r) {
      for (Index j = 0; j < 6; ++j) {
        const std::array<double, 4> right{
            difference_of([&](const Matrix& y) { return g.dot(reference::logprob(y, targets, T)); }, x, r, j),
            difference_of([&](const Matrix& y) { return g.dot(reference::entropy(y, T)); }, x, r, j),
            difference_of([&](const Matrix& y) { return g.dot(reference::lse(y, T)); }, x, r, j),
            difference_of([&](const Matrix& y) { return (k.array() * reference::gathered(y, ids, T).array()).sum(); }, x, r,
                          j)};
        for (std::size_t i = 0; i < 4; ++i) CHECK(std::abs(found[i](r, j) - right[i]) <= 1e-10);
      }
    }
  }
}

TEST_CASE("the reference keeps its precision where a row is nearly certain, and under any offset") {
  for (const double gap : {1.0, 20.0, 36.0, 60.0, 300.0}) {
    for (const double offset : {0.0, 1024.0, -4096.0}) {
      const Matrix x = row({offset, offset + gap});
      const long double rest = std::exp(-static_cast<long double>(gap));
      const std::vector<Index> sure{1};
      const reference::Vector one = reference::Vector::Ones(1);
      CAPTURE(gap);
      CHECK(reference::logprob(x, sure)(0) == relative(double(-std::log1p(rest)), 1e-15));
      CHECK(reference::logprob_gradient(x, sure, one)(0, 1) == relative(double(rest / (1 + rest)), 1e-15));
      CHECK(reference::entropy(x)(0) == relative(double(std::log1p(rest) + gap * rest / (1 + rest)), 1e-15));
    }
  }
}

TEST_CASE("the reference gives -inf columns no probability and no gradient, and rows without support NaN") {
  const Matrix x = row({0, -kInf, std::log(3.0)});
  CHECK(reference::entropy(x)(0) == relative(0.562335, 1e-6));
  const reference::Vector one = reference::Vector::Ones(1);
  CHECK(near(reference::entropy_gradient(x, one), row({0.205990, 0, -0.205990}), 1e-6));
  CHECK(reference::logprob(x, std::vector<Index>{1})(0) == -kInf);
  for (const Matrix& bad : {row({-kInf, -kInf}), row({0, kInf}), row({0, std::nan("")})}) {
    CHECK(std::isnan(reference::entropy(bad)(0)));
    CHECK(std::isnan(reference::lse(bad)(0)));
    CHECK(std::isnan(reference::entropy_gradient(bad, one)(0, 0)));
    CHECK(std::isnan(reference::logprob_gradient(bad, std::vector<Index>{1}, one)(0, 0)));
    CHECK((reference::entropy_gradient(bad, 0 * one).array() == 0).all());
  }
}

TEST_CASE("the reference allows no tokens and one column") {
  CHECK(reference::log_softmax(Matrix(0, 5)).rows() == 0);
  CHECK(reference::entropy(row({7}))(0) == 0);
  CHECK(reference::logprob(row({-7}), std::vector<Index>{0})(0) == 0);
  CHECK(reference::logprob_gradient(row({-7}), std::vector<Index>{0}, reference::Vector::Ones(1))(0, 0) == 0);
}

}  // namespace losstape::testing
