// SPDX-License-Identifier: Apache-2.0
// Negative log-likelihood (supervised fine-tuning).
#pragma once

#include "ops/losses/loss_result.h"
#include "ops/packing.h"
#include "ops/vocab_stats.h"

namespace losstape {

// −Σ m ℓ / (N_tokens + 1e-8), with m = token_mask · sample_mask of the predicted tokens. Needs columns.token_mask.
// Metrics (NeMo-RL's names): loss, num_unmasked_tokens (Σ m), num_valid_samples (Σ sample_mask).
// Cost and errors as policy_loss. Source: NeMo-RL's NLL; the global normaliser as in peers.
template <class R>
[[nodiscard]] BasicLossResult<R> nll_loss(BasicVar<R> logprob, const Packing& packing, const LossColumns& columns,
                                          const Counts& counts = {});
template <class R>
[[nodiscard]] BasicLossResult<R> nll_loss(const BasicVocabStats<R>& stats, const Packing& packing,
                                          const LossColumns& columns, const Counts& counts = {}) {
  return nll_loss(stats.logprob, packing, columns, counts);
}

}  // namespace losstape
