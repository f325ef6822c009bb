// SPDX-License-Identifier: Apache-2.0
// vocab_stats: log-prob, entropy, gathered log-probs and log-sum-exp of packed logits over a sharded vocabulary, as one
// node.
#pragma once

#include "distributed/vocab_shard.h"
#include "engine/tape.h"
#include "engine/view.h"
#include "ops/packing.h"

namespace losstape {

struct VocabStatsOptions {
  double temperature = 1;  // every output is of logits / temperature, and gradients carry the factor; finite, above 0
  bool entropy = false;    // ask for .entropy
  bool lse = false;        // ask for .lse
  View gathered{};  // ask for .gathered: [rows of the pack, K] ids; row g belongs to global row g; repeated ids add up
  Index ignore_index = -100;  // a target of this value is none
  View rows{};           // [rows of the pack]: rows with 0 have no entropy, lse or gathered value; empty: every real row
  Index chunk_rows = 0;  // rows whose gradient is written before the next rows are begun; 0: all. Changes no bit
};

// What vocab_stats gives, a Var each of [packing.rows(), 1] ([.., K] gathered). One that was not asked for is empty: any use
// of it is a UsageError that names its option.
template <class R>
struct BasicVocabStats {
  BasicVar<R> logprob;   // log p(target); 0 where a row has no target
  BasicVar<R> entropy;   // −Σ p log p
  BasicVar<R> gathered;  // log p of the K ids of each row
  BasicVar<R> lse;       // log Σ e^(x/temperature)
};

using VocabStats = BasicVocabStats<float>;

// The packing-aware node over logits z, [≥ packing.rows(), shard.width()]: all sequences in one pass, one fused backward.
//
//   log p_k = −((m − x_k) + log1p(s)),  H = log1p(s) − u/(1 + s),  lse = m + log1p(s)      with x = z / temperature
//   dL/dx_j = −p_j (Σ g − l + h (log p_j + H)) + the g of column j itself
//
// for adjoints g of log-probs, h of the entropy, l of lse; (m, s, u) as in ops/row_stats.h. Rows follow the packing: row r
// predicts the next token of its sequence in `input_ids` ([packing.tokens()], global). −∞ logits are masked columns:
// probability and gradient 0. A row without target is read only for outputs that need none; padding rows are never read and
// their gradient is exactly 0, as is that of every row whose adjoints are 0.
//
// Cost: forward reads the logits once, backward once and writes the slice once. Saves 3 reals and 1 byte a row. Collectives:
// 1 forward over shard.group, of 32 bytes a row and 8 a gathered column, 0 backward; a layout that is seen for the first
// time shakes hands once. Errors (UsageError, the same on every rank, nothing written): shapes, dtypes, orders, labels
// outside the vocabulary (named with row and value), a temperature that is not above 0, shards that do not tile the
// vocabulary, ranks whose options, labels or packing differ. A row that has no distribution (NaN, +∞, all −∞) is an error
// only where a backward brings it a non-zero adjoint (NonFinite::error). Source: two-level online softmax as in Milakov and
// Gimelshein, arXiv:1805.02867, with the maximum left out of its own sum.
template <class R>
[[nodiscard]] BasicVocabStats<R> vocab_stats(BasicVar<R> z, const Packing& packing, const View& input_ids,
                                             const VocabShard& shard, const VocabStatsOptions& options = {});
template <class R>
BasicVocabStats<R> vocab_stats(BasicVar<R> z, Packing&& packing, const View& input_ids, const VocabShard& shard,
                               const VocabStatsOptions& options = {}) = delete;  // the node refers to the packing

// The same node with a target a row, [z.rows()], of int32 or int64; ignore_index: none.
template <class R>
[[nodiscard]] BasicVocabStats<R> vocab_stats(BasicVar<R> z, const View& targets, const VocabShard& shard,
                                             const VocabStatsOptions& options = {});

}  // namespace losstape
