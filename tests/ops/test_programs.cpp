// SPDX-License-Identifier: Apache-2.0
// Losses that users write from the public pieces: GSPO as a graph, an entropy bonus, CISPO, one by operators alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "distributed/threads.h"
#include "engine/gradcheck.h"
#include "ops/masked_reduce.h"
#include "ops/sequence.h"
#include "ops/token_map.h"
#include "ops/vocab_stats.h"
#include "tests/ops/loss_truth.h"
#include "tests/ops/sample.h"

namespace losstape::testing {
namespace {

// ---- the programs, as a user writes them ---------------------------------------------------------------------------------

auto gspo(auto z, const Env& env) {
  auto& t = *z.tape;
  const Batch& b = env.batch;
  const Packing& packing = env.packing;
  auto column = [&](const auto& v) { return t.constant(packing.to_predictions(v)); };
  auto logp = vocab_stats(z, packing, b.ids, env.shard).logprob;
  auto mask = column(b.token_mask);
  auto ratio = spread(exp(sequence_mean(logp - column(b.prev), mask, packing)), packing);
  auto token =
      token_map([](auto r, auto adv) { return max(-adv * r, -adv * clamp(r, 0.95, 1.08)); }, ratio, column(b.advantages));
  return masked_mean(sequence_mean(token, mask, packing), t.constant(b.sample_mask), {.count = 3});
}

auto entropy_bonus(auto z, const Env& env) {
  auto& t = *z.tape;
  const Batch& b = env.batch;
  const Packing& packing = env.packing;
  auto s = vocab_stats(z, packing, b.ids, env.shard, {.temperature = 0.7, .entropy = true});
  auto token = token_map([](auto logp, auto H, auto adv) { return -adv * logp - 0.01 * H; }, s.logprob, s.entropy,
                         t.constant(packing.to_predictions(b.advantages)));
  return masked_mean(token, t.constant(packing.to_predictions(b.token_mask)), packing, {.count = 9});
}

auto cispo(auto z, const Env& env) {
  auto& t = *z.tape;
  const Batch& b = env.batch;
  const Packing& packing = env.packing;
  auto column = [&](const auto& v) { return t.constant(packing.to_predictions(v)); };
  auto token =
      token_map([](auto logp, auto old, auto adv) { return -adv * stop_gradient(clamp(exp(logp - old), 0.8, 1.2)) * logp; },
                vocab_stats(z, packing, b.ids, env.shard).logprob, column(b.prev), column(b.advantages));
  return masked_mean(token, column(b.token_mask), packing, {.count = 9});
}

auto by_operators(auto z, const Env& env) {
  auto& t = *z.tape;
  const Batch& b = env.batch;
  const Packing& packing = env.packing;
  auto column = [&](const auto& v) { return t.constant(packing.to_predictions(v)); };
  auto logp = vocab_stats(z, packing, b.ids, env.shard).logprob;
  auto ratio = exp(logp - column(b.prev));
  auto token = -(column(b.advantages) * stop_gradient(ratio) * logp) + 0.5 * (ratio * ratio);
  return masked_mean(token, column(b.token_mask), packing, {.count = 9});
}

// ---- their definitions ---------------------------------------------------------------------------------------------------

// Slopes with respect to each row's log-prob and entropy.
struct Slopes {
  double loss = 0;
  reference::Vector logp;
  reference::Vector entropy;
};

// A mean over tokens of f(logp, H, old, adv) → {value, slope of logp, slope of H}.
auto token_mean(auto f) {
  return [f](const Batch& b, const reference::Vector& logp, const reference::Vector& H) {
    Slopes s{0, reference::Vector::Zero(b.tokens()), reference::Vector::Zero(b.tokens())};
    for (Index g = 0; g < b.tokens(); ++g) {
      const double m = b.at_prediction(b.token_mask, g) / (9 + 1e-8);
      if (m == 0) continue;
      const std::array<double, 3> y = f(logp(g), H(g), b.at_prediction(b.prev, g), b.at_prediction(b.advantages, g));
      s.loss += m * y[0];
      s.logp(g) = m * y[1];
      s.entropy(g) = m * y[2];
    }
    return s;
  };
}

Slopes gspo_truth(const Batch& b, const reference::Vector& logp, const reference::Vector& /*H*/) {
  Slopes s{0, reference::Vector::Zero(b.tokens()), reference::Vector::Zero(b.tokens())};
  for (Index q = 0; q < b.sequences(); ++q) {
    double count = 0;
    double log_ratio = 0;
    std::vector<Index> live;
    for (Index g = b.padded[std::size_t(q)]; g < b.padded[std::size_t(q) + 1]; ++g) {
      if (b.at_prediction(b.token_mask, g) == 0) continue;
      live.push_back(g);
      count += 1;
      log_ratio += logp(g) - b.at_prediction(b.prev, g);
    }
    const double ratio = std::exp(log_ratio / (count + 1e-8));
    const double clipped = std::clamp(ratio, 0.95, 1.08);
    const double weight = b.sample_mask[std::size_t(q)] / (count + 1e-8) / (3 + 1e-8);
    double slope = 0;  // of the loss with respect to the ratio
    for (const Index g : live) {
      const double adv = b.at_prediction(b.advantages, g);
      s.loss += weight * std::max(-adv * ratio, -adv * clipped);
      if (clipped == ratio || -adv * ratio > -adv * clipped) slope -= weight * adv;
    }
    for (const Index g : live) s.logp(g) = slope * ratio / (count + 1e-8);
  }
  return s;
}

Sample program(const std::string& name, auto record, auto truth, double temperature, bool stopped) {
  Sample sample;
  sample.node = "program";
  sample.name = name;
  sample.inputs = {Domain::logits};
  recorded_by(sample, [record](auto& /*tape*/, auto x, const Env& env) {
    return Made<typename decltype(x)::value_type::Real>{record(x[0], env)};
  });
  sample.values = [](const Batch& batch) { return std::vector<Matrix>{batch.logits}; };
  sample.truth = [truth, temperature](const Batch& b, std::span<const Matrix> x, const Matrix& seed) {
    const Matrix logits = x[0].topRows(b.tokens()).leftCols(b.vocab);
    std::vector<Index> targets = b.targets();
    targets.resize(std::size_t(b.tokens()));
    const Slopes s = truth(b, reference::logprob(logits, targets, temperature), reference::entropy(logits, temperature));
    Matrix g = Matrix::Zero(b.tokens(), b.stored);
    g.leftCols(b.vocab) = seed(0, 0) * (reference::logprob_gradient(logits, targets, s.logp, temperature) +
                                        reference::entropy_gradient(logits, s.entropy, temperature));
    return Truth{Matrix::Constant(1, 1, s.loss), {g}};
  };
  sample.stopped = stopped;
  return sample;
}

const std::vector<Sample>& programs() {
  static const std::vector<Sample> list{
      program(
          "GSPO", [](auto z, const Env& env) { return gspo(z, env); }, gspo_truth, 1, false),
      program(
          "entropy bonus", [](auto z, const Env& env) { return entropy_bonus(z, env); },
          token_mean([](double l, double H, double, double adv) {
            return std::array<double, 3>{-adv * l - 0.01 * H, -adv, -0.01};
          }),
          0.7, false),
      program(
          "CISPO", [](auto z, const Env& env) { return cispo(z, env); },
          token_mean([](double l, double, double old, double adv) {
            const double r = std::clamp(std::exp(l - old), 0.8, 1.2);
            return std::array<double, 3>{-adv * r * l, -adv * r, 0};
          }),
          1, true),
      program(
          "by operators", [](auto z, const Env& env) { return by_operators(z, env); },
          token_mean([](double l, double, double old, double adv) {
            const double r = std::exp(l - old);
            return std::array<double, 3>{-adv * r * l + 0.5 * r * r, -adv * r + r * r, 0};
          }),
          1, true)};
  return list;
}

}  // namespace

TEST_CASE("losses written from the public pieces have the values and gradients of their definitions on any ranks") {
  for (const Sample& sample : programs()) {
    for (const Batch* batch : {&small_batches()[0], &small_batches()[2], &context_batch()}) {
      CAPTURE(sample.name);
      CAPTURE(batch->name);
      const std::vector<Matrix> x = sample.values(*batch);
      const Matrix seed = Matrix::Constant(1, 1, 1.5);
      const Truth right = sample.truth(*batch, x, seed);
      const auto check = [&](const Outcome& found, double bound) {
        CHECK(found.faults == "");
        CHECK(far_from(found.y, right.y, bound, "loss") == "");
        CHECK(far_from(found.gradients[0], right.gradients[0], bound, "gradient") == "");
      };
      check(evaluate<double>(sample, *batch, x, seed, {.dtype = DType::f64}), 1e-12);
      check(evaluate<float>(sample, *batch, x, seed, {}), 5e-6);
      check(evaluate<double>(sample, *batch, x, seed, {.dtype = DType::f64, .cuts = {2, 3}}), 1e-12);
      for (const ContextLayout layout : {ContextLayout::contiguous, ContextLayout::zigzag}) {
        if (batch != &context_batch() && layout == ContextLayout::zigzag) continue;
        check(evaluate<double>(sample, *batch, x, seed,
                               {.dtype = DType::f64, .cuts = {3}, .context_ranks = 3, .context_layout = layout}),
              1e-12);
      }
    }
  }
}

TEST_CASE("gradients of losses written from the public pieces equal their differences") {
  for (const Sample& sample : programs()) {
    CAPTURE(sample.name);
    const Batch& batch = small_batches()[1];
    Packing packing;
    batch.assign(packing);
    const Env env{batch, packing, VocabShard::whole(batch.vocab, batch.stored)};
    const auto f = [&](auto& tape, auto x) {
      using R = typename std::remove_cvref_t<decltype(tape)>::Real;
      const std::array<BasicVar<R>, 1> inputs{x};
      return sample.record<R>()(tape, inputs, env).y;
    };
    const GradcheckReport report = gradcheck(f, batch.logits);
    CHECK_MESSAGE(report, report.summary());
    CHECK_MESSAGE((report.stopped > 1e-6) == sample.stopped, report.summary());
  }
}

TEST_CASE("gradients over tensor and context ranks equal their differences, each rank moving its own logits") {
  const Batch batch = make_batch({.name = "clean", .lengths = {5, 7}, .padded = {8, 8}, .vocab = 6, .seed = 4});
  for (const Sample& sample : programs()) {
    CAPTURE(sample.name);
    const std::vector<GradcheckReport> reports = threads::run(4, [&](Communicator& world) {
      const auto tensor = world.split(world.rank() / 2, world.rank());
      const auto context = world.split(world.rank() % 2, world.rank());
      Packing packing;
      batch.assign(packing, ContextGroup(*context), ContextLayout::zigzag);
      const VocabShard shard = VocabShard::even(*tensor, 6);
      Matrix mine(packing.rows(), shard.width());
      for (Index r = 0; r < mine.rows(); ++r) {
        for (Index c = 0; c < mine.cols(); ++c) mine(r, c) = batch.logits(packing.global_row(r), shard.begin + c);
      }
      const Env env{batch, packing, shard};
      const auto f = [&](auto& tape, auto x) {
        using R = typename std::remove_cvref_t<decltype(tape)>::Real;
        const std::array<BasicVar<R>, 1> inputs{x};
        return sample.record<R>()(tape, inputs, env).y;
      };
      GradcheckOptions options;
      options.rank = world.rank();
      options.coordinates.assign(4, Index(mine.size()));
      options.sum = [&](double value) { return world.all_reduce(value, Reduce::sum); };
      return gradcheck(f, mine, options);
    });
    for (const GradcheckReport& report : reports) CHECK_MESSAGE(report, report.summary());
  }
}

}  // namespace losstape::testing
