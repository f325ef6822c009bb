// SPDX-License-Identifier: Apache-2.0
// Rows and adjoints at the edge of fp32: near-certain rows over near-equal columns, huge upstreams, estimators that cancel.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "distributed/threads.h"
#include "ops/losses/policy_loss.h"
#include "ops/vocab_stats.h"

namespace losstape {
namespace {

constexpr Index kVocab = 4096;
const double kOne = 1;

// Target 0 far above columns that are all alike: their rounding errors have one sign and add up.
std::vector<float> certain_row(float target, float others) {
  std::vector<float> row(kVocab, others);
  row[0] = target;
  return row;
}

float logprob_over(const std::vector<float>& row, int ranks) {
  const std::vector<std::int64_t> targets{0};
  return threads::run(ranks, [&](Communicator& group) {
    const VocabShard shard = VocabShard::even(TensorGroup(group), kVocab);
    Tape tape;
    const Var z = tape.constant(View(row.data() + shard.begin, 1, shard.width()));
    const Var logprob = vocab_stats(z, targets, shard).logprob;
    return tape.value(logprob).get<float>(0);
  })[0];
}

}  // namespace

TEST_CASE("a near-certain row over near-equal columns keeps its log-prob to 2e-6") {
  for (const float others : {-18.06F, -32.2614212F, -34.6047745F, -27.0F}) {
    const std::vector<float> row = certain_row(2.15597749F, others);
    // log p = -log1p(s), s = 4095 e^d: both to fp64 here.
    const double want = -std::log1p(4095.0 * std::exp(double(others) - double(row[0])));
    const double got = logprob_over(row, 1);
    CHECK(std::abs(got / want - 1) <= 2e-6);
  }
}

TEST_CASE("the number of shards changes a near-certain log-prob by 4 ulps at most") {
  for (const float others : {-34.6047745F, -30.111F, -22.7F}) {
    const std::vector<float> row = certain_row(2.15597749F, others);
    const float single = logprob_over(row, 1);
    for (const int ranks : {2, 3, 8}) {
      const float shared = logprob_over(row, ranks);
      const auto ulps = std::bit_cast<std::int32_t>(single) - std::bit_cast<std::int32_t>(shared);
      CHECK(std::abs(ulps) <= 4);
    }
  }
}

TEST_CASE("a near-certain target keeps its small gradient in full relative precision") {
  for (const float others : {-20.0F, -27.0F, -33.5F}) {
    const std::vector<float> row = certain_row(2, others);
    const std::vector<std::int64_t> targets{0};
    std::vector<float> slice(kVocab);
    Tape tape;
    const Var z = tape.input(View(row.data(), 1, kVocab), MutableView(slice.data(), 1, kVocab));
    tape.backward(vocab_stats(z, targets, VocabShard::whole(kVocab)).logprob, View(&kOne, 1, 1));
    const double s = 4095.0 * std::exp(double(others) - 2.0);
    CHECK(std::abs(double(slice[0]) / (s / (1 + s)) - 1) <= 2e-6);
  }
}

TEST_CASE("a huge finite adjoint gives the finite gradient that it should") {
  const std::vector<float> logits{0, -50, -1};
  const std::vector<std::int64_t> targets{0};
  std::vector<float> slice(3);
  Tape tape;
  const Var z = tape.input(View(logits.data(), 1, 3), MutableView(slice.data(), 1, 3));
  const auto stats = vocab_stats(z, targets, VocabShard::whole(3), {.entropy = true});
  const std::vector<double> seed{1e37};
  tape.backward(stats.entropy, seed);
  double s = 0;
  double mean = 0;
  for (const double x : {0.0, -50.0, -1.0}) s += std::exp(x);
  for (const double x : {0.0, -50.0, -1.0}) mean += std::exp(x) / s * x;
  for (std::size_t j = 0; j < 3; ++j) {
    const double p = std::exp(double(logits[j])) / s;
    const double want = -1e37 * p * (double(logits[j]) - mean);
    CHECK(std::abs(double(slice[j]) / want - 1) <= 1e-5);
  }
}

TEST_CASE("k3 without clamps keeps its gradient, -r, where e^r is large") {
  const std::vector<std::int64_t> cu{0, 2};
  const std::vector<float> zeros{0, 0};
  const std::vector<float> ones{1, 1};
  PolicyLossOptions options;
  options.kl_penalty = 1;
  options.kl_clamps.bounds_input = options.kl_clamps.bounds_output = false;
  for (const float r : {15.0F, 19.0F, 20.0F}) {
    const std::vector<float> reference{0, r};
    std::vector<float> slice(2);
    Packing packing;
    packing.assign(cu);
    Tape tape;
    const Var logprob = tape.input(zeros, slice);
    const LossColumns columns{
        .token_mask = ones, .advantages = zeros, .prev_logprobs = zeros, .reference_logprobs = reference};
    tape.backward(policy_loss(logprob, packing, columns, options).loss);
    CHECK(slice[0] == doctest::Approx(-r).epsilon(1e-6));
  }
}

}  // namespace losstape
