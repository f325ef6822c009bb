// SPDX-License-Identifier: Apache-2.0
// Which columns of the vocabulary a rank holds.
#pragma once

#include "distributed/communicator.h"
#include "engine/dtype.h"

namespace losstape {

// Columns [begin, end) of the stored vocabulary, and the group over which the shards tile it once. Columns at vocab_size and
// beyond are padding: probability 0 and gradient 0, whatever they hold. Shards may be uneven or empty.
struct VocabShard {
  Index begin = 0;
  Index end = 0;
  Index vocab_size = 0;
  TensorGroup group;

  // All columns on one rank. `stored` ≥ vocab_size counts the padding too. Errors: UsageError for sizes below 0 or stored <
  // vocab_size.
  [[nodiscard]] static VocabShard whole(Index vocab_size, Index stored = -1);
  // Shares that differ by one column at most, in rank order.
  [[nodiscard]] static VocabShard even(TensorGroup group, Index vocab_size, Index stored = -1);
  // Any share. That all of them tile the vocabulary is checked where ranks first meet.
  [[nodiscard]] static VocabShard range(TensorGroup group, Index begin, Index end, Index vocab_size);

  [[nodiscard]] Index width() const { return end - begin; }
  // Columns of this shard that are not padding.
  [[nodiscard]] Index real_width() const {
    const Index real_end = end < vocab_size ? end : vocab_size;
    return real_end > begin ? real_end - begin : 0;
  }
  [[nodiscard]] bool holds(Index id) const { return begin <= id && id < begin + real_width(); }
};

// Checks, once a layout and group, that all ranks agree on the vocabulary and that their shards tile it once: one
// collective, counted as a handshake. Errors: UsageError on every rank.
void agree_on_layout(const VocabShard& shard);

}  // namespace losstape
