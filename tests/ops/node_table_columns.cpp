// SPDX-License-Identifier: Apache-2.0
// Samples of the nodes that work on columns: token_map, the reductions, spread.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ops/masked_reduce.h"
#include "ops/sequence.h"
#include "ops/token_map.h"
#include "tests/ops/loss_truth.h"
#include "tests/ops/node_table.h"
#include "tests/support/random.h"

namespace losstape::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Matrix random_matrix(Index rows, Index cols, std::uint64_t seed, double low, double high) {
  Random random(seed);
  Matrix x(rows, cols);
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < cols; ++c) x(r, c) = static_cast<double>(static_cast<float>(random.uniform(low, high)));
  }
  return x;
}

// Sequence and token masks in prediction rows.
double mask_at(const Batch& batch, Index g) { return batch.at_prediction(batch.token_mask, g); }

// Values for reductions: NaN and ∞ where a poisoned batch masks.
std::vector<Matrix> masked_values(const Batch& batch) {
  Matrix x = random_matrix(batch.tokens(), 1, 31, -2, 3);
  for (Index g = 0; g < batch.tokens() && batch.poisoned; ++g) {
    if (mask_at(batch, g) == 0) x(g, 0) = g % 2 == 0 ? std::numeric_limits<double>::quiet_NaN() : -kInf;
  }
  return {x};
}

std::vector<Matrix> sequence_values(const Batch& batch) { return {random_matrix(batch.sequences(), 1, 32, -1, 1)}; }

Sample column_sample(const char* node, const std::string& name, std::vector<Domain> inputs, Domain output, auto record,
                     auto values, auto truth) {
  Sample sample;
  sample.node = node;
  sample.name = name;
  sample.inputs = std::move(inputs);
  sample.output = output;
  recorded_by(sample, record);
  sample.values = values;
  sample.truth = truth;
  sample.fp32_bound = 2e-6;
  return sample;
}

template <class X>
using real_in = typename X::value_type::Real;

// ---- token_map ------------------------------------------------------------------------------------------------------

// A truth of f(a, b, c) element by element, with its three slopes.
auto pointwise_truth(auto f) {
  return [f](const Batch& /*batch*/, std::span<const Matrix> x, const Matrix& seed) {
    Truth truth;
    truth.y.resize(x[0].rows(), x[0].cols());
    truth.gradients.assign(x.size(), Matrix::Zero(x[0].rows(), x[0].cols()));
    for (Index at = 0; at < x[0].size(); ++at) {
      const std::array<double, 4> found = f(x[0].data()[at], x[1].data()[at], x[2].data()[at]);
      truth.y.data()[at] = found[0];
      for (std::size_t i = 0; i < 3; ++i) {
        if (seed.data()[at] != 0) truth.gradients[i].data()[at] = seed.data()[at] * found[i + 1];
      }
    }
    return truth;
  };
}

std::vector<Matrix> three_columns(const Batch& batch, Index cols) {
  return {random_matrix(batch.tokens(), cols, 21, -1.5, 1.5), random_matrix(batch.tokens(), cols, 22, 0.3, 2.5),
          random_matrix(batch.tokens(), cols, 23, -1.5, 1.5)};
}

void add_token_map(std::vector<Sample>& table) {
  const std::vector<Domain> tokens(3, Domain::token);
  table.push_back(column_sample(
      "token_map", "smooth functions of three columns", tokens, Domain::token,
      [](auto& /*tape*/, auto x, const Env& /*env*/) {
        return Made<real_in<decltype(x)>>{token_map(
            [](auto a, auto b, auto c) { return exp(a) / b + log(b) * c - sqrt(b) * log_sigmoid(c) + 2 * sigmoid(a); }, x[0],
            x[1], x[2])};
      },
      [](const Batch& batch) { return three_columns(batch, 1); }, pointwise_truth([](double a, double b, double c) {
        const double s = 1 / (1 + std::exp(-a));
        const double ls = -std::log1p(std::exp(-c));
        return std::array<double, 4>{
            std::exp(a) / b + std::log(b) * c - std::sqrt(b) * ls + 2 * s, std::exp(a) / b + 2 * s * (1 - s),
            -std::exp(a) / (b * b) + c / b - ls / (2 * std::sqrt(b)), std::log(b) - std::sqrt(b) / (1 + std::exp(c))};
      })));
  table.push_back(column_sample(
      "token_map", "kinks and selections over two columns each", tokens, Domain::token,
      [](auto& /*tape*/, auto x, const Env& /*env*/) {
        return Made<real_in<decltype(x)>>{token_map(
            [](auto a, auto b, auto c) { return max(a, c) * b + min(a * 2.0, b) - clamp(c, -0.5, 0.75) + abs(a - c); }, x[0],
            x[1], x[2])};
      },
      [](const Batch& batch) { return three_columns(batch, 2); }, pointwise_truth([](double a, double b, double c) {
        const double inside = c >= -0.5 && c <= 0.75 ? 1 : 0;
        const double sign = a > c ? 1 : -1;
        return std::array<double, 4>{std::max(a, c) * b + std::min(2 * a, b) - std::clamp(c, -0.5, 0.75) + std::abs(a - c),
                                     (a > c ? b : 0) + (2 * a < b ? 2 : 0) + sign, std::max(a, c) + (2 * a < b ? 0 : 1),
                                     (a > c ? 0 : b) - inside - sign};
      })));
  table.push_back(column_sample(
      "token_map", "a stopped weight, and a metric beside", tokens, Domain::token,
      [](auto& /*tape*/, auto x, const Env& /*env*/) {
        const auto both = token_map(
            [](auto a, auto b, auto c) {
              const auto weight = stop_gradient(exp(a - c));
              return std::array{weight * a * b, weight};
            },
            x[0], x[1], x[2]);
        return Made<real_in<decltype(x)>>{both[0]};
      },
      [](const Batch& batch) { return three_columns(batch, 1); }, pointwise_truth([](double a, double b, double c) {
        const double w = std::exp(a - c);
        return std::array<double, 4>{w * a * b, w * b, w * a, 0};
      })));
  table.back().stopped = true;
  table.push_back(column_sample(
      "token_map", "operators on Vars, one Var named twice", tokens, Domain::token,
      [](auto& /*tape*/, auto x, const Env& /*env*/) {
        const auto ratio = exp(x[0] - x[2]);
        return Made<real_in<decltype(x)>>{-(ratio * ratio) + 0.5 * x[1] / ratio - (1.0 - x[1]) * stop_gradient(x[2])};
      },
      [](const Batch& batch) { return three_columns(batch, 1); }, pointwise_truth([](double a, double b, double c) {
        const double r = std::exp(a - c);
        return std::array<double, 4>{-r * r + 0.5 * b / r - (1 - b) * c, -2 * r * r - 0.5 * b / r, 0.5 / r + c,
                                     2 * r * r + 0.5 * b / r};
      })));
  table.back().stopped = true;
}

// ---- reductions to scalars --------------------------------------------------------------------------------------------

Truth reduced_truth(const Batch& batch, std::span<const Matrix> x, const Matrix& seed, Per per) {
  const Weights w = weights_of(batch);
  const std::vector<double>& first = per == Per::tokens ? w.token : per == Per::sequences ? w.sequence : w.mask;
  Truth truth{Matrix::Zero(1, 1), {Matrix::Zero(batch.tokens(), 1)}, {0, 0, 0, kInf, -kInf, w.tokens, w.samples}};
  for (Index g = 0; g < batch.tokens(); ++g) {
    const auto at = std::size_t(g);
    if (w.mask[at] == 0) continue;
    const double v = x[0](g, 0);
    truth.y(0, 0) += first[at] * v;
    truth.gradients[0](g, 0) = seed(0, 0) * first[at];
    truth.metrics[0] += w.token[at] * v;
    truth.metrics[1] += w.sequence[at] * v;
    truth.metrics[2] += w.mask[at] * v;
    truth.metrics[3] = std::min(truth.metrics[3], v);
    truth.metrics[4] = std::max(truth.metrics[4], v);
  }
  return truth;
}

Sample reduce_sample(const std::string& name, Per per) {
  return column_sample(
      "masked_reduce", name, {Domain::token}, Domain::scalar,
      [per](auto& tape, auto x, const Env& env) {
        using R = real_in<decltype(x)>;
        const std::array<ReducedColumn<R>, 6> columns{{{x[0], per},
                                                       {x[0], Per::tokens},
                                                       {x[0], Per::sequences},
                                                       {x[0], Per::none},
                                                       {x[0], Per::min},
                                                       {x[0], Per::max}}};
        const auto found = masked_reduce<R>(columns, token_mask(tape, env), tape.constant(env.batch.sample_mask),
                                            env.packing, env.batch.counts);
        Made<R> made{found[0]};
        for (std::size_t k = 1; k < 8; ++k) made.add(found[k]);
        return made;
      },
      masked_values,
      [per](const Batch& batch, std::span<const Matrix> x, const Matrix& seed) {
        return reduced_truth(batch, x, seed, per);
      });
}

void add_reductions(std::vector<Sample>& table) {
  table.push_back(reduce_sample("a mean over tokens, with metrics", Per::tokens));
  table.push_back(reduce_sample("a mean over sequences, with metrics", Per::sequences));
  table.push_back(reduce_sample("a sum, with metrics", Per::none));
  table.push_back(column_sample(
      "masked_reduce", "masked_mean of a token column", {Domain::token}, Domain::scalar,
      [](auto& tape, auto x, const Env& env) {
        return Made<real_in<decltype(x)>>{masked_mean(x[0], token_mask(tape, env), env.packing, {.count = 7.0})};
      },
      masked_values,
      [](const Batch& batch, std::span<const Matrix> x, const Matrix& seed) {
        Truth truth{Matrix::Zero(1, 1), {Matrix::Zero(batch.tokens(), 1)}};
        for (Index g = 0; g < batch.tokens(); ++g) {
          const double m = mask_at(batch, g) / (7.0 + 1e-8);
          if (m == 0) continue;
          truth.y(0, 0) += m * x[0](g, 0);
          truth.gradients[0](g, 0) = seed(0, 0) * m;
        }
        return truth;
      }));
  table.push_back(column_sample(
      "masked_reduce", "masked_mean of a sequence column", {Domain::sequence}, Domain::scalar,
      [](auto& tape, auto x, const Env& env) {
        return Made<real_in<decltype(x)>>{
            masked_mean(x[0], tape.constant(env.batch.sample_mask), {.count = env.batch.counts.sequences})};
      },
      sequence_values,
      [](const Batch& batch, std::span<const Matrix> x, const Matrix& seed) {
        Truth truth{Matrix::Zero(1, 1), {Matrix::Zero(batch.sequences(), 1)}};
        double count = 0;
        for (const double a : batch.sample_mask) count += a;
        count = batch.counts.sequences.value_or(count) + 1e-8;
        for (Index b = 0; b < batch.sequences(); ++b) {
          const double m = batch.sample_mask[std::size_t(b)] / count;
          truth.y(0, 0) += m * x[0](b, 0);
          truth.gradients[0](b, 0) = seed(0, 0) * m;
        }
        return truth;
      }));
}

// ---- between tokens and sequences ---------------------------------------------------------------------------------------

Truth sequence_truth(const Batch& batch, std::span<const Matrix> x, const Matrix& seed, bool mean) {
  Truth truth{Matrix::Zero(batch.sequences(), 1), {Matrix::Zero(batch.tokens(), 1)}};
  std::vector<double> count(std::size_t(batch.sequences()), 0.0);
  for (Index g = 0; g < batch.tokens(); ++g) count[std::size_t(batch.sequence_of(g))] += mask_at(batch, g);
  for (Index g = 0; g < batch.tokens(); ++g) {
    const Index b = batch.sequence_of(g);
    const double m = mask_at(batch, g) / (mean ? count[std::size_t(b)] + 1e-8 : 1.0);
    if (m == 0) continue;
    truth.y(b, 0) += m * x[0](g, 0);
    truth.gradients[0](g, 0) = seed(b, 0) * m;
  }
  return truth;
}

void add_sequence_nodes(std::vector<Sample>& table) {
  table.push_back(column_sample(
      "sequence_sum", "of a token column", {Domain::token}, Domain::sequence,
      [](auto& tape, auto x, const Env& env) {
        return Made<real_in<decltype(x)>>{sequence_sum(x[0], token_mask(tape, env), env.packing)};
      },
      masked_values,
      [](const Batch& batch, std::span<const Matrix> x, const Matrix& seed) {
        return sequence_truth(batch, x, seed, false);
      }));
  table.push_back(column_sample(
      "sequence_mean", "of a token column", {Domain::token}, Domain::sequence,
      [](auto& tape, auto x, const Env& env) {
        return Made<real_in<decltype(x)>>{sequence_mean(x[0], token_mask(tape, env), env.packing)};
      },
      masked_values,
      [](const Batch& batch, std::span<const Matrix> x, const Matrix& seed) {
        return sequence_truth(batch, x, seed, true);
      }));
  table.push_back(column_sample(
      "spread", "of a sequence column", {Domain::sequence}, Domain::token,
      [](auto& /*tape*/, auto x, const Env& env) { return Made<real_in<decltype(x)>>{spread(x[0], env.packing)}; },
      sequence_values,
      [](const Batch& batch, std::span<const Matrix> x, const Matrix& seed) {
        Truth truth{Matrix::Zero(batch.tokens(), 1), {Matrix::Zero(batch.sequences(), 1)}};
        for (Index g = 0; g < batch.tokens(); ++g) {
          truth.y(g, 0) = x[0](batch.sequence_of(g), 0);
          truth.gradients[0](batch.sequence_of(g), 0) += seed(g, 0);
        }
        return truth;
      }));
}

}  // namespace

void add_column_samples(std::vector<Sample>& table) {
  add_token_map(table);
  add_reductions(table);
  add_sequence_nodes(table);
}

}  // namespace losstape::testing
