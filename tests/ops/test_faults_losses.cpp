// SPDX-License-Identifier: Apache-2.0
// Faults that others met in losses, each as its minimal input and the right result.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/gradcheck.h"
#include "ops/losses/nll.h"
#include "ops/losses/policy_loss.h"
#include "ops/masked_reduce.h"
#include "ops/sequence.h"
#include "ops/token_map.h"
#include "tests/ops/columns_case.h"
#include "tests/ops/dense.h"
#include "tests/support/refusal.h"

namespace losstape::testing {
namespace {

constexpr double kPrinted = 1.5e-6;

bool close(double a, double b, double bound = kPrinted) { return std::abs(a - b) <= bound; }

// A policy loss of one token.
PolicyCase one_token(double logp, double prev, double advantage, const PolicyLossOptions& options, double ref = 0) {
  return policy_case<double>({.logp = {logp},
                              .prev = {prev},
                              .advantage = {advantage},
                              .mask = {1},
                              .generation = {logp},
                              .reference = {ref},
                              .options = options});
}

PolicyLossOptions with_kl(KlEstimator estimator, double beta, KlWeight weight) {
  PolicyLossOptions options;
  options.kl_penalty = beta;
  options.kl_estimator = estimator;
  options.kl_weight = weight;
  return options;
}

}  // namespace

TEST_CASE("the KL penalty is added to the loss, and grows with the distance from the reference") {  // B54
  struct Row {
    KlEstimator estimator;
    double value, slope;
  };
  for (const Row& row :
       {Row{KlEstimator::k1, 1, 1}, Row{KlEstimator::k2, 0.5, 1}, Row{KlEstimator::k3, 0.367879, 0.632121}}) {
    using D = Dual<double, 1>;
    const D kl = 0.1 * calculate_kl(row.estimator, D::variable(-1, 0), D(-2), D(1), {});
    CHECK(close(kl.value, 0.1 * row.value));
    CHECK(close(kl.d[0], 0.1 * row.slope));
    // In the loss the importance weight is 1 here; it adds its own slope, the estimate, to the estimator's.
    const PolicyCase found = one_token(-1, -1, 0, with_kl(row.estimator, 0.1, KlWeight::on_policy), -2);
    CHECK(close(found.loss, 0.1 * row.value));
    CHECK(close(found.gradient[0], 0.1 * (row.slope + row.value)));
    const PolicyCase score = one_token(-1, -1, 0, with_kl(row.estimator, 0.1, KlWeight::score_function), -2);
    CHECK(close(score.gradient[0], 0.1 * (row.slope + row.value)));
  }
}

TEST_CASE("clipping and dual clip follow the sign of the advantage") {  // B57
  PolicyLossOptions options = PolicyLossOptions::grpo();
  options.kl_penalty = 0;
  options.dual_clip = 3;
  struct Row {
    double advantage, ratio, loss, slope;
  };
  for (const Row& row : {Row{1, 1.5, -1.2, 0}, Row{1, 0.5, -0.5, -0.5}, Row{-1, 0.5, 0.8, 0}, Row{-1, 1.5, 1.5, 1.5},
                         Row{-1, 10, 3, 0}, Row{1, 10, -1.2, 0}, Row{1, 1, -1, -1}}) {
    CAPTURE(row.advantage);
    CAPTURE(row.ratio);
    const PolicyCase found = one_token(std::log(row.ratio) - 2, -2, row.advantage, options);
    CHECK(close(found.loss, row.loss, 1e-7));
    CHECK(close(found.gradient[0], row.slope, 1e-7));
  }
  // At the bound exactly both branches are equal, and both pass: −A r.
  options.clip_high = 1;
  const PolicyCase at_bound =
      policy_case<double>({.logp = {std::log(2.0)}, .prev = {0}, .advantage = {1}, .mask = {1}, .options = options});
  if (std::exp(std::log(2.0)) == 2.0) {
    CHECK(close(at_bound.loss, -2, 1e-7));
    CHECK(close(at_bound.gradient[0], -2, 1e-7));
  }
  for (const double c : {1.0, 0.5, -3.0}) {
    options.dual_clip = c;
    check_says(refusal([&] { (void)one_token(-1, -1, 1, options); }), "dual_clip");
  }
}

TEST_CASE("a sequence's ratio is the mean of its unmasked tokens, and weighs each by its length") {  // B58
  const std::vector<std::int64_t> cu{0, 3, 4};
  const std::vector<double> ratios{std::log(1.1), std::log(0.9), -6, std::log(1.5)};
  std::vector<double> slice(4, -9);
  const std::vector<double> mask{1, 1, 0, 1};
  Packing packing;
  packing.assign(cu);
  TapeF64 tape({.audit = Audit::unwritten_rows});
  const VarF64 x = tape.input(ratios, slice);
  const VarF64 m = tape.constant(mask);
  const VarF64 s = exp(sequence_mean(x, m, packing));
  CHECK(close(tape.value(s).get<double>(0), 0.994987));
  CHECK(close(tape.value(s).get<double>(1), 1.5));
  const VarF64 token = token_map([](auto r) { return max(-r, -clamp(r, 0.8, 1.2)); }, spread(s, packing));
  const VarF64 of_sequences = sequence_mean(token, m, packing);
  const std::vector<double> both{1, 1};
  const VarF64 loss = masked_mean(of_sequences, tape.constant(both));
  CHECK(close(loss.item(), -1.097494));
  tape.backward(loss);
  CHECK(close(slice[0], -0.248747));
  CHECK(close(slice[1], -0.248747));
  CHECK(slice[2] == 0);
  CHECK(slice[3] == 0);
}

TEST_CASE("the temperature stands in the value and in the chain rule, once") {  // B60
  Dense dense{.logits = row({2, 0}), .targets = {0}, .logprob_adjoint = {1}, .temperature = 0.5};
  for (const std::vector<Index>& cuts : std::vector<std::vector<Index>>{{}, {1}}) {
    dense.cuts = cuts;
    const DenseResult r = evaluate<double>(dense);
    CHECK(close(r.logprob(0, 0), -0.018150));
    CHECK(near(r.gradient, row({0.035972, -0.035972}), kPrinted));
  }
  for (const double T : {0.0, -0.5, std::numeric_limits<double>::quiet_NaN()}) {
    dense.temperature = T;
    check_says(refusal([&] { (void)evaluate<double>(dense); }), "temperature");
  }
}

TEST_CASE("an entropy bonus has a gradient, and an entropy that nobody asked for is not kept") {  // B62
  const std::vector<double> logits{0, std::log(3.0)};
  const std::vector<std::int64_t> targets{-100};
  const auto bonus = [&](auto& /*tape*/, auto z) {
    return -0.1 * vocab_stats(z, targets, VocabShard::whole(2), {.entropy = true}).entropy;
  };
  std::vector<double> slice(2);
  TapeF64 tape;
  const VarF64 loss = bonus(tape, tape.input(View(logits.data(), 1, 2), MutableView(slice.data(), 1, 2)));
  tape.backward(loss);
  CHECK(close(loss.item(), -0.0562335));
  CHECK(close(slice[0], -0.0205990));
  CHECK(close(slice[1], 0.0205990));
  const GradcheckReport report = gradcheck(bonus, View(logits.data(), 1, 2));
  CHECK_MESSAGE(report, report.summary());
  // Without the option there is no column of it.
  const auto columns = [&](bool entropy) {
    TapeF64 other;
    const VarF64 z = other.constant(View(logits.data(), 1, 2));
    (void)vocab_stats(z, targets, VocabShard::whole(2), {.entropy = entropy});
    return other.memory().columns;
  };
  CHECK(columns(false) < columns(true));
}

TEST_CASE("a correction weight is a constant where it says so") {  // B64
  const std::vector<double> logp{std::log(0.6)};
  const std::vector<double> old{std::log(0.4)};
  const auto slope_of = [&](auto f) {
    std::vector<double> slice(1);
    TapeF64 tape;
    const VarF64 y = token_map(f, tape.input(logp, slice), tape.constant(old));
    tape.backward(y);
    return std::pair(y.item(), slice[0]);
  };
  const auto [value, slope] = slope_of([](auto l, auto o) { return -stop_gradient(exp(l - o)) * l; });
  CHECK(close(value, 0.766238));
  CHECK(close(slope, -1.5));
  const auto [cispo_value, cispo] =
      slope_of([](auto l, auto o) { return -stop_gradient(clamp(exp(l - o), 0.0, 1.28)) * l; });
  CHECK(close(cispo_value, 1.28 * -std::log(0.6)));
  CHECK(close(cispo, -1.28));
  PolicyLossOptions clipped = PolicyLossOptions::dapo();
  clipped.clip_high = 0.28;
  CHECK(one_token(logp[0], old[0], 1, clipped).gradient[0] == 0);
}

TEST_CASE("weights in one functor and by operators give the same loss") {  // B65
  const std::vector<double> losses{-1, -1};
  const std::vector<double> weights{0.01, 1};
  const std::vector<double> mask{1, 1};
  for (const bool fused : {true, false}) {
    std::vector<double> slice(2);
    TapeF64 tape;
    const VarF64 x = tape.input(losses, slice);
    const VarF64 w = tape.constant(weights);
    const VarF64 token = fused ? token_map([](auto l, auto v) { return v * l; }, x, w) : w * x;
    const VarF64 loss = masked_mean(token, tape.constant(mask));
    tape.backward(loss);
    CHECK(close(loss.item(), -0.505, 1e-8));
    CHECK(close(slice[0], 0.005, 1e-8));
    CHECK(close(slice[1], 0.5, 1e-8));
  }
}

}  // namespace losstape::testing
