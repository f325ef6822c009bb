// SPDX-License-Identifier: Apache-2.0
// The clipped policy gradient: PPO, GRPO, DAPO and dual clip, with a KL penalty and the diagnostics that go with them.
#pragma once

#include "ops/losses/loss_result.h"
#include "ops/losses/policy_functor.h"
#include "ops/masked_reduce.h"
#include "ops/packing.h"
#include "ops/vocab_stats.h"

namespace losstape {

// The loss of a pack, from vocab_stats' log-prob (or any Var [packing.rows(), 1] of log-probs in prediction rows) and
// token-aligned columns: the shift is done here. Needs token_mask, advantages, prev_logprobs; reference_logprobs where
// kl_penalty is not 0; generation_logprobs defaults to prev_logprobs.
//
// Metrics (NeMo-RL's names): loss, probs_ratio, probs_ratio_clamped and their _min and _max, kl_penalty,
// token_mult_prob_error, gen_kl_error, policy_kl_error, js_divergence_error, sampling_importance_ratio, num_valid_samples,
// approx_entropy, positive_nll_loss (0: that term is off).
// Cost: one token_map and one masked_reduce: saves 4 bytes a row and 8 a sequence, holds about 16 columns (4 bytes a row
// each, 8 for the loss); one forward collective over context ranks. Errors (UsageError): missing or misshaped columns, ε or
// c out of range; a loss that is not finite where the mask is not 0.
template <class R>
[[nodiscard]] BasicLossResult<R> policy_loss(BasicVar<R> logprob, const Packing& packing, const LossColumns& columns,
                                             const PolicyLossOptions& options = {}, const Counts& counts = {});
template <class R>
[[nodiscard]] BasicLossResult<R> policy_loss(const BasicVocabStats<R>& stats, const Packing& packing,
                                             const LossColumns& columns, const PolicyLossOptions& options = {},
                                             const Counts& counts = {}) {
  return policy_loss(stats.logprob, packing, columns, options, counts);
}

}  // namespace losstape
