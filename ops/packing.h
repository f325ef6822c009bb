// SPDX-License-Identifier: Apache-2.0
// Sequences laid end to end in one buffer: which row belongs to which sequence, and which token it predicts.
#pragma once

#include <cstdint>
#include <vector>

#include "distributed/communicator.h"
#include "engine/dtype.h"
#include "engine/view.h"

namespace losstape {

// How the rows of a pack are shared over context ranks.
enum class ContextLayout : unsigned char {
  zigzag,  // 2·ranks pieces a sequence; rank r holds pieces r and 2·ranks − 1 − r. Padded lengths are multiples of 2·ranks
  contiguous,  // rank r holds the r-th range of rows of the pack, of any length
};

// B sequences in T rows. Sequence b occupies rows [padded[b], padded[b+1]) of the pack, real tokens first; row g of sequence
// b predicts the token in row g + 1 if that is a real token of the same sequence, else it has no target: a sequence's last
// real row, and every padding row. Empty and one-token sequences are legal; a [B, S] batch is a packing of equal padded
// lengths.
//
// "Global" rows are rows of the whole pack: ids and per-token columns are indexed by them on every context rank. "Local"
// rows are the rows of this rank's logits; without a context group the two are the same. Rows of a buffer past the last
// local row are padding.
//
// Nodes refer to the packing: it outlives the step, and assign() in between is found out by its version.
class Packing {
 public:
  Packing() = default;

  // cu_seqlens: [B+1] of int32 or int64, from 0, never decreasing. cu_seqlens_padded likewise, where rows follow padded
  // lengths. Reuses its memory. Errors: UsageError naming the offset; the packing is then as it was.
  void assign(const View& cu_seqlens, ContextGroup group = {}, ContextLayout layout = ContextLayout::zigzag);
  void assign(const View& cu_seqlens, const View& cu_seqlens_padded, ContextGroup group = {},
              ContextLayout layout = ContextLayout::zigzag);
  // B sequences of `padded` rows each; lengths [B] of real tokens, all `padded` where empty.
  void assign_batch(Index sequences, Index padded, const View& lengths = {});

  [[nodiscard]] Index sequences() const { return static_cast<Index>(length_.size()); }
  // Rows of the whole pack, and of this rank.
  [[nodiscard]] Index tokens() const { return start_.empty() ? 0 : start_.back(); }
  [[nodiscard]] Index rows() const { return local_start_.empty() ? 0 : local_start_.back(); }
  [[nodiscard]] const ContextGroup& group() const { return group_; }
  // Grows with every assign. A node keeps the version that it was recorded with; its backward refuses another.
  [[nodiscard]] std::uint64_t version() const { return version_; }
  // Errors: UsageError in the name of `node`.
  void expect_version(std::uint64_t version, const char* node) const;

  // Where a local row below rows() stands. Cost: a binary search over the sequences; nothing is kept a row.
  struct Place {
    Index sequence;
    Index global;    // row of the whole pack
    Index position;  // in its sequence
  };
  [[nodiscard]] Place place(Index row) const;
  [[nodiscard]] Index sequence(Index row) const { return place(row).sequence; }
  [[nodiscard]] Index global_row(Index row) const { return place(row).global; }
  // Rows past rows() are padding.
  [[nodiscard]] bool is_real(Index row) const;
  [[nodiscard]] bool has_target(Index row) const { return target_row(row) >= 0; }
  // The global row of the token that a local row predicts, or −1.
  [[nodiscard]] Index target_row(Index row) const;

  // Real tokens of a sequence, and its local rows [first, last).
  [[nodiscard]] Index length(Index sequence) const { return length_[static_cast<std::size_t>(sequence)]; }
  [[nodiscard]] Index first_row(Index sequence) const { return local_start_[static_cast<std::size_t>(sequence)]; }
  [[nodiscard]] Index last_row(Index sequence) const { return local_start_[static_cast<std::size_t>(sequence) + 1]; }

  // A token-aligned column (element r describes the token in global row r) moved to the rows that predict its tokens: a
  // recipe for tape.constant. 0 where a row has no target. Errors: UsageError for a column shorter than the pack.
  class Predictions {
   public:
    using IsColumnRecipe = void;

    Predictions(const Packing& packing, const View& column) : packing_(&packing), column_(column) {}
    [[nodiscard]] Index rows() const { return packing_->rows(); }
    [[nodiscard]] double operator()(Index row) const {
      const Index target = packing_->target_row(row);
      return target >= 0 ? column_.get<double>(target) : 0.0;
    }

   private:
    const Packing* packing_;
    View column_;
  };
  [[nodiscard]] Predictions to_predictions(const View& column) const;

 private:
  void lay_out(ContextGroup group, ContextLayout layout);

  std::vector<Index> start_;        // [B+1] padded offsets
  std::vector<Index> length_;       // [B]
  std::vector<Index> local_start_;  // [B+1]
  Index from_ = 0;                  // first global row of this rank, where rows are shared as one range
  ContextLayout layout_ = ContextLayout::contiguous;
  ContextGroup group_;
  std::uint64_t version_ = 0;
};

}  // namespace losstape
