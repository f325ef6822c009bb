// SPDX-License-Identifier: Apache-2.0
// Packed batches for tests: logits, ids and every per-token column, with values that fp32 holds exactly.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/losses/loss_result.h"
#include "ops/masked_reduce.h"
#include "ops/packing.h"
#include "ops/reference.h"

namespace losstape::testing {

using reference::Matrix;

// Ids and columns are token-aligned and global; rows of the logits follow the padded offsets, and `extra` rows come after.
struct Batch {
  std::string name;
  Index vocab = 0;
  Index stored = 0;  // columns of the logits, padding among them
  std::vector<std::int64_t> cu;
  std::vector<std::int64_t> padded;
  Index extra = 0;
  std::vector<std::int64_t> ids;
  Matrix logits;  // [tokens() + extra, stored]
  std::vector<double> token_mask;
  std::vector<double> advantages;
  std::vector<double> prev;
  std::vector<double> generation;
  std::vector<double> reference;
  std::vector<double> sample_mask;
  std::vector<std::int64_t> gathered;          // [tokens(), kGathered]
  std::vector<double> extra_rows;              // [tokens()] the rows option of vocab_stats
  std::vector<std::int64_t> explicit_targets;  // [tokens() + extra] a target a row of the logits; −100: none
  bool poisoned = false;
  Counts counts;  // what losses divide by; unset: the batch's own

  static constexpr Index kGathered = 3;

  [[nodiscard]] Index sequences() const { return static_cast<Index>(cu.size()) - 1; }
  [[nodiscard]] Index tokens() const { return padded.back(); }
  [[nodiscard]] Index length(Index b) const { return cu[std::size_t(b) + 1] - cu[std::size_t(b)]; }
  // The token that row g predicts, by the definition: −1 where there is none.
  [[nodiscard]] Index target_row(Index g) const;
  [[nodiscard]] Index target(Index g) const;
  [[nodiscard]] Index sequence_of(Index g) const;
  [[nodiscard]] bool is_real(Index g) const;
  [[nodiscard]] std::vector<Index> targets() const;

  // Column element of the token that row g predicts; 0 where there is none.
  [[nodiscard]] double at_prediction(const std::vector<double>& column, Index g) const;

  [[nodiscard]] LossColumns columns() const;
  void assign(Packing& packing, ContextGroup group = {}, ContextLayout layout = ContextLayout::zigzag) const;
};

struct BatchShape {
  std::string name;
  std::vector<Index> lengths;
  std::vector<Index> padded{};  // rows a sequence; empty: the lengths
  Index vocab = 5;
  Index stored = 0;  // 0: vocab
  Index extra = 0;
  bool poison = false;  // padding rows and columns, and columns at masked tokens, hold NaN, ±∞ and 1e30
  std::uint64_t seed = 1;
};

[[nodiscard]] Batch make_batch(const BatchShape& shape);

// The batches of the node table: a plain one; ragged ones with empty and one-token sequences and padding everywhere, clean
// and poisoned; one sequence.
[[nodiscard]] const std::vector<Batch>& small_batches();
// Columns in two tiles and a tail.
[[nodiscard]] const Batch& wide_batch();
// Padded lengths that suit zigzag over up to 4 ranks.
[[nodiscard]] const Batch& context_batch();

// Sequence order[0], order[1], … of `batch`, with their rows and padding; the counts stay the given ones.
[[nodiscard]] Batch take_sequences(const Batch& batch, std::span<const Index> order);
// The pack rows of those sequences, in their new order.
[[nodiscard]] std::vector<Index> rows_of_sequences(const Batch& batch, std::span<const Index> order);

}  // namespace losstape::testing
