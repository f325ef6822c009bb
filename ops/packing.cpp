// SPDX-License-Identifier: Apache-2.0
// Offsets checked once; then every row's sequence and place in the pack follow from them.
#include "ops/packing.h"

#include <algorithm>
#include <string>

#include "engine/error.h"

namespace losstape {
namespace {

// Checks that `offsets` is [B+1], from 0, never decreasing. `name` is the caller's word for it.
void check_offsets(const View& offsets, const char* name) {
  const bool integers = offsets.dtype == DType::i32 || offsets.dtype == DType::i64;
  if (!integers || offsets.cols != 1 || offsets.rows < 1) {
    throw UsageError({"Packing", std::string(name) + " as a column of B + 1 offsets of int32 or int64",
                      "[" + std::to_string(offsets.rows) + ", " + std::to_string(offsets.cols) + "] of " +
                          losstape::name(offsets.dtype)});
  }
  Index before = 0;
  for (Index b = 0; b < offsets.rows; ++b) {
    const auto offset = offsets.get<Index>(b);
    if (b == 0 && offset != 0) {
      throw UsageError({"Packing", std::string(name) + " from 0", std::to_string(offset), "", 0});
    }
    if (offset < before) {
      throw UsageError({"Packing", std::string(name) + " that never decrease",
                        std::to_string(offset) + " after " + std::to_string(before), "offsets are cumulative lengths", b});
    }
    before = offset;
  }
}

}  // namespace

void Packing::assign(const View& cu_seqlens, ContextGroup group, ContextLayout layout) {
  assign(cu_seqlens, cu_seqlens, group, layout);
}

void Packing::assign(const View& cu_seqlens, const View& cu_seqlens_padded, ContextGroup group, ContextLayout layout) {
  check_offsets(cu_seqlens, "cu_seqlens");
  check_offsets(cu_seqlens_padded, "cu_seqlens_padded");
  if (cu_seqlens.rows != cu_seqlens_padded.rows) {
    throw UsageError({"Packing", "cu_seqlens_padded of as many offsets as cu_seqlens, " + std::to_string(cu_seqlens.rows),
                      std::to_string(cu_seqlens_padded.rows)});
  }
  const Index pieces = layout == ContextLayout::zigzag && group.size() > 1 ? Index{2} * group.size() : 1;
  for (Index b = 0; b + 1 < cu_seqlens.rows; ++b) {
    const Index length = cu_seqlens.get<Index>(b + 1) - cu_seqlens.get<Index>(b);
    const Index padded = cu_seqlens_padded.get<Index>(b + 1) - cu_seqlens_padded.get<Index>(b);
    if (length > padded) {
      throw UsageError({"Packing", "cu_seqlens within cu_seqlens_padded",
                        "sequence " + std::to_string(b) + " of " + std::to_string(length) + " tokens in " +
                            std::to_string(padded) + " rows",
                        "", b});
    }
    if (padded % pieces != 0) {
      throw UsageError({"Packing", "padded lengths that are multiples of 2 × context ranks, " + std::to_string(pieces),
                        "sequence " + std::to_string(b) + " of " + std::to_string(padded) + " rows",
                        "pad it, or use ContextLayout::contiguous", b});
    }
  }
  const auto sequences = static_cast<std::size_t>(cu_seqlens.rows - 1);
  start_.resize(sequences + 1);
  length_.resize(sequences);
  for (std::size_t b = 0; b <= sequences; ++b) start_[b] = cu_seqlens_padded.get<Index>(static_cast<Index>(b));
  for (std::size_t b = 0; b < sequences; ++b) {
    length_[b] = cu_seqlens.get<Index>(static_cast<Index>(b) + 1) - cu_seqlens.get<Index>(static_cast<Index>(b));
  }
  lay_out(group, layout);
}

void Packing::assign_batch(Index sequences, Index padded, const View& lengths) {
  Index rows = 0;
  if (sequences < 0 || padded < 0 || __builtin_mul_overflow(sequences, padded, &rows)) {
    throw UsageError({"Packing", "sequences and padded length of at least 0",
                      std::to_string(sequences) + " of " + std::to_string(padded)});
  }
  const bool all = lengths.data() == nullptr;
  if (!all && (lengths.rows != sequences || lengths.cols != 1)) {
    throw UsageError({"Packing", "lengths [" + std::to_string(sequences) + "]",
                      "[" + std::to_string(lengths.rows) + ", " + std::to_string(lengths.cols) + "]"});
  }
  if (!all && lengths.dtype != DType::i32 && lengths.dtype != DType::i64) {
    throw UsageError({"Packing", "lengths of int32 or int64", losstape::name(lengths.dtype)});
  }
  for (Index b = 0; b < sequences && !all; ++b) {
    const auto length = lengths.get<Index>(b);
    if (length < 0 || length > padded) {
      throw UsageError({"Packing", "lengths between 0 and " + std::to_string(padded), std::to_string(length), "", b});
    }
  }
  start_.resize(static_cast<std::size_t>(sequences) + 1);
  length_.resize(static_cast<std::size_t>(sequences));
  start_[0] = 0;
  for (Index b = 0; b < sequences; ++b) {
    start_[static_cast<std::size_t>(b) + 1] = padded * (b + 1);
    length_[static_cast<std::size_t>(b)] = all ? padded : lengths.get<Index>(b);
  }
  lay_out({}, ContextLayout::contiguous);
}

void Packing::lay_out(ContextGroup group, ContextLayout layout) {
  group_ = group;
  layout_ = group.size() > 1 ? layout : ContextLayout::contiguous;
  ++version_;
  const Index ranks = group.size();
  const Index rank = group.rank();
  const Index total = tokens();
  from_ = total / ranks * rank + total % ranks * rank / ranks;
  const Index to = total / ranks * (rank + 1) + total % ranks * (rank + 1) / ranks;
  local_start_.assign(1, 0);
  for (Index b = 0; b < sequences(); ++b) {
    const Index begin = start_[static_cast<std::size_t>(b)];
    const Index end = start_[static_cast<std::size_t>(b) + 1];
    const Index rows = layout_ == ContextLayout::zigzag ? (end - begin) / ranks
                                                        : std::max<Index>(0, std::min(end, to) - std::max(begin, from_));
    local_start_.push_back(local_start_.back() + rows);
  }
}

Packing::Place Packing::place(Index row) const {
  // The last sequence that starts at or before the row: those without rows here share their start with the next.
  const auto next = std::upper_bound(local_start_.begin(), local_start_.end(), row);
  const auto b = static_cast<std::size_t>(next - local_start_.begin()) - 1;
  const Index offset = row - local_start_[b];
  Index global = 0;
  if (layout_ == ContextLayout::zigzag) {
    const Index pieces = Index{2} * group_.size();
    const Index piece = (start_[b + 1] - start_[b]) / pieces;
    const Index rank = group_.rank();
    global = start_[b] + offset + (offset < piece ? piece * rank : piece * (pieces - 2 - rank));
  } else {
    global = std::max(start_[b], from_) + offset;
  }
  return {static_cast<Index>(b), global, global - start_[b]};
}

bool Packing::is_real(Index row) const {
  if (row >= rows()) return false;
  const Place at = place(row);
  return at.position < length(at.sequence);
}

Index Packing::target_row(Index row) const {
  if (row >= rows()) return -1;
  const Place at = place(row);
  return at.position + 1 < length(at.sequence) ? at.global + 1 : -1;
}

void Packing::expect_version(std::uint64_t version, const char* node) const {
  if (version == version_) return;
  throw UsageError({node, "the packing that was recorded", "one assigned anew since", "use one Packing a step in flight"});
}

Packing::Predictions Packing::to_predictions(const View& column) const {
  if (column.rows < tokens() || column.cols != 1) {
    throw UsageError({"to_predictions",
                      "a column with an element for each of the pack's " + std::to_string(tokens()) + " rows",
                      "[" + std::to_string(column.rows) + ", " + std::to_string(column.cols) + "]",
                      "per-token columns are those of the whole pack"});
  }
  return {*this, column};
}

}  // namespace losstape
