// SPDX-License-Identifier: Apache-2.0
// The two passes over a row of logits: its statistics, and the write of its gradient. Public pieces for a user's own V-sized
// node; vocab_stats is made of them.
#pragma once

#include <limits>
#include <span>

#include "distributed/vocab_shard.h"
#include "engine/grad_slice.h"
#include "engine/node.h"
#include "ops/row_gradient.h"
#include "ops/row_stats.h"

namespace losstape {

// Columns are summed in tiles of this many, cut at multiples of it in *global* column numbers: the result does not depend on
// chunks, threads or the other rows of the call.
inline constexpr Index kVocabTile = 4096;

// A row's statistics, and its largest logit as stored, which stats.m · temperature need not be in fp64.
struct LocalRow {
  RowStats stats;
  double max = -std::numeric_limits<double>::infinity();
};

// The statistics of row r's real columns in this shard, of logits / temperature. One pass; the tape's real type within a
// tile, fp64 across tiles. −∞ columns and empty shards are ordinary.
template <class R>
[[nodiscard]] LocalRow local_row(const Values<R>& logits, Index r, const VocabShard& shard, double temperature = 1);
template <class R>
[[nodiscard]] RowStats local_row_stats(const Values<R>& logits, Index r, const VocabShard& shard, double temperature = 1) {
  return local_row(logits, r, shard, temperature).stats;
}

// The slot that ranks join: pass as fold to Communicator::join.
inline void join_row_stats(RowStats& into, const RowStats& from) { into = join(into, from); }

// A column with an adjoint of its own log-prob: the target, or a gathered one. `value` is the kernel's.
struct PointGradient {
  Index column = 0;  // in this shard
  double adjoint = 0;
  double value = 0;
};

// Writes row r's gradient into a slice of the logits, each element once: p_j (a − h (d_j − mean_u)) / temperature over the
// real columns, exact 0 over padding, and the points' own values at their (distinct) columns. One pass. The slice may be the
// logits' own memory.
template <class R>
void write_softmax_row(const GradSlice<R>& slice, const Values<R>& logits, Index r, const VocabShard& shard,
                       const RowGradient& row, std::span<PointGradient> points = {});

// What both passes need of a logits Var: one column a real or padding column of the shard, rows contiguous.
// Errors: UsageError in the name of `operation`.
void check_logits(const View& logits, const VocabShard& shard, const char* operation);

}  // namespace losstape
