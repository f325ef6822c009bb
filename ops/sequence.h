// SPDX-License-Identifier: Apache-2.0
// Between token columns and sequence columns: sums and means of a sequence's tokens, and the way back.
#pragma once

#include "engine/tape.h"
#include "ops/packing.h"

namespace losstape {

// Over context ranks token columns are partitioned and sequence columns replicated. So a reduction sums over ranks forward
// and is local backward; spread is local forward and sums over ranks backward. (A sum in both would give a gradient that is
// the number of ranks too large.)

// Σ mask·x over each sequence: [packing.rows(), 1] → [B, 1]. Elements with mask 0 are selected away. fp64 in row order.
// Cost: saves nothing. Collectives over packing.group(): 1 forward, 0 backward. Errors: UsageError for shapes, a mask that
// wants a gradient or is not finite, and with NonFinite::error a value that is not finite where the mask is not 0.
template <class R>
[[nodiscard]] BasicVar<R> sequence_sum(BasicVar<R> x, BasicVar<R> mask, const Packing& packing);

// The same over Σ mask + 1e-8 of the sequence, as the peers divide: an empty sequence has mean 0. Saves 8 bytes a sequence.
template <class R>
[[nodiscard]] BasicVar<R> sequence_mean(BasicVar<R> x, BasicVar<R> mask, const Packing& packing);

// Each row gets its sequence's element: [B, 1] → [packing.rows(), 1]. Collectives: 0 forward, 1 backward.
template <class R>
[[nodiscard]] BasicVar<R> spread(BasicVar<R> x, const Packing& packing);

}  // namespace losstape
