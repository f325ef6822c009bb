// SPDX-License-Identifier: Apache-2.0
// expect: use of deleted function .*vocab_stats
// The node refers to the packing.
#include "ops/vocab_stats.h"

auto use(losstape::Var z, const losstape::View& ids) {
  return losstape::vocab_stats(z, losstape::Packing(), ids, losstape::VocabShard::whole(8));
}
