// SPDX-License-Identifier: Apache-2.0
// Samples of the losses, from logits to the scalar and its metrics.
#include "ops/losses/nll.h"
#include "ops/losses/policy_loss.h"
#include "ops/vocab_stats.h"
#include "tests/ops/loss_truth.h"
#include "tests/ops/node_table.h"

namespace losstape::testing {
namespace {

template <class R>
Made<R> made_of(const BasicLossResult<R>& result) {
  Made<R> made{result.loss};
  for (const Metric<R>& metric : result.metrics()) made.add(metric.value);
  return made;
}

// `loss` records it from the log-probs' node; `truth` gives it from the right log-probs.
Sample loss_sample(const char* node, const std::string& name, auto loss, auto truth) {
  Sample sample;
  sample.node = node;
  sample.name = name;
  sample.inputs = {Domain::logits};
  sample.output = Domain::scalar;
  recorded_by(sample, [loss](auto& /*tape*/, auto x, const Env& env) {
    const auto stats = vocab_stats(x[0], env.packing, env.batch.ids, env.shard, {.chunk_rows = env.chunk_rows});
    return made_of(loss(stats, env));
  });
  sample.values = [](const Batch& batch) { return std::vector<Matrix>{batch.logits}; };
  sample.truth = [truth](const Batch& batch, std::span<const Matrix> x, const Matrix& seed) {
    const Matrix logits = x[0].topRows(batch.tokens()).leftCols(batch.vocab);
    std::vector<Index> targets = batch.targets();
    targets.resize(std::size_t(batch.tokens()));
    const LossTruth right = truth(batch, reference::logprob(logits, targets));
    Matrix gradient = Matrix::Zero(batch.tokens(), batch.stored);
    gradient.leftCols(batch.vocab) = reference::logprob_gradient(logits, targets, seed(0, 0) * right.slope);
    return Truth{Matrix::Constant(1, 1, right.loss), {gradient}, right.metrics};
  };
  return sample;
}

Sample policy_sample(const std::string& name, const PolicyLossOptions& options, bool stopped) {
  Sample sample = loss_sample(
      "policy_loss", name,
      [options](const auto& stats, const Env& env) {
        return policy_loss(stats, env.packing, env.batch.columns(), options, env.batch.counts);
      },
      [options](const Batch& batch, const reference::Vector& logp) { return policy_truth(batch, logp, options); });
  sample.stopped = stopped;
  return sample;
}

PolicyLossOptions with(auto change) {
  PolicyLossOptions options;
  change(options);
  return options;
}

}  // namespace

void add_loss_samples(std::vector<Sample>& table) {
  table.push_back(loss_sample(
      "nll_loss", "of a pack",
      [](const auto& stats, const Env& env) { return nll_loss(stats, env.packing, env.batch.columns(), env.batch.counts); },
      nll_truth));
  table.push_back(policy_sample("GRPO", PolicyLossOptions::grpo(), true));
  table.push_back(policy_sample("DAPO, no KL", PolicyLossOptions::dapo(), false));
  table.push_back(policy_sample("dual clip", with([](auto& o) { o.dual_clip = 1.5, o.kl_penalty = 0; }), false));
  table.push_back(policy_sample("KL k1", with([](auto& o) { o.kl_estimator = KlEstimator::k1, o.kl_penalty = 0.7; }), true));
  table.push_back(policy_sample("KL k2 unclamped", with([](auto& o) {
                                  o.kl_estimator = KlEstimator::k2, o.kl_penalty = 0.7;
                                  o.kl_clamps = {.bounds_input = false, .bounds_output = false};
                                }),
                                true));
  table.push_back(policy_sample("KL k3 with clamps that bind", with([](auto& o) {
                                  o.kl_penalty = 2;
                                  o.kl_clamps = {.input = 0.4, .output = 0.06};
                                }),
                                true));
  table.push_back(policy_sample("KL with on-policy weights",
                                with([](auto& o) { o.kl_penalty = 0.5, o.kl_weight = KlWeight::on_policy; }), false));
  table.push_back(
      policy_sample("means of sequences", with([](auto& o) { o.level = LossLevel::sequence, o.kl_penalty = 0; }), false));
}

}  // namespace losstape::testing
