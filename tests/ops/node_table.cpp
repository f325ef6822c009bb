// SPDX-License-Identifier: Apache-2.0
// The table's contents.
#include "tests/ops/node_table.h"

namespace losstape::testing {

const std::vector<std::string>& registered_nodes() {
  static const std::vector<std::string> names{"vocab_stats",   "token_map", "masked_reduce", "sequence_sum",
                                              "sequence_mean", "spread",    "nll_loss",      "policy_loss"};
  return names;
}

const std::vector<Sample>& samples() {
  static const std::vector<Sample> table = [] {
    std::vector<Sample> made;
    add_vocab_samples(made);
    add_column_samples(made);
    add_loss_samples(made);
    return made;
  }();
  return table;
}

}  // namespace losstape::testing
