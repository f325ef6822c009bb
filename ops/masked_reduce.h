// SPDX-License-Identifier: Apache-2.0
// Masked reductions of token columns to scalars: a loss, its metrics and its counts in one node and one join.
#pragma once

#include <optional>
#include <span>

#include "engine/tape.h"
#include "ops/packing.h"

namespace losstape {

// How a column becomes a scalar. With token mask t, sample mask a (1 where there is none), m = t·a, and 1e-8 added to every
// count as the peers do (an empty mean is 0):
enum class Per : unsigned char {
  tokens,     // Σ m x / (N_tokens + 1e-8)
  sequences,  // Σ_b a_b (Σ t x / (Σ t + 1e-8)) / (N_sequences + 1e-8): the mean of sequence means
  none,       // Σ m x
  min,        // the least x with m ≠ 0; +∞ where there is none, NaN where one is NaN
  max,        // the largest; −∞ where there is none, NaN likewise
};

// Global counts by which means are divided: over all micro-batches and data-parallel ranks of the step. Those not given are
// this pack's own, over all context ranks: Σ m, and Σ a over sequences with a token with m > 0.
struct Counts {
  std::optional<double> tokens{};
  std::optional<double> sequences{};
};

template <class R>
struct ReducedColumn {
  BasicVar<R> column;  // [packing.rows(), 1]
  Per per = Per::tokens;
};

// Scalars in the order of the columns, then Σ m and Σ a of this pack. Only the first is differentiated, and only with
// respect to its column.
//
// Elements with m = 0 are selected away before any arithmetic: they may hold NaN or ∞, and their gradient is exactly 0.
// Sums are fp64, a sequence at a time in row order, then over sequences.
// Cost: saves 8 bytes a sequence. Collectives: 1 forward over packing.group(), 0 backward: token columns are partitioned
// over context ranks, so each rank's rows have the whole derivative already. Errors (UsageError): a mask that wants a
// gradient, shapes, a mask that is not finite, and with NonFinite::error a first column that is not finite where m ≠ 0, on
// every rank, naming the row and the node that made it.
template <class R>
[[nodiscard]] VarList<R> masked_reduce(std::span<const ReducedColumn<R>> columns, BasicVar<R> token_mask,
                                       BasicVar<R> sample_mask, const Packing& packing, const Counts& counts = {});

struct MeanOptions {
  std::optional<double> count{};  // Σ mask where not given
};

// Σ mask·x / (count + 1e-8) of a token column, reduced over context ranks.
template <class R>
[[nodiscard]] BasicVar<R> masked_mean(BasicVar<R> x, BasicVar<R> mask, const Packing& packing,
                                      const MeanOptions& options = {});
// The same of a sequence column, which every rank holds whole: no collective.
template <class R>
[[nodiscard]] BasicVar<R> masked_mean(BasicVar<R> x, BasicVar<R> mask, const MeanOptions& options = {});

}  // namespace losstape
