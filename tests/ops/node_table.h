// SPDX-License-Identifier: Apache-2.0
// The table of all nodes and losses: samples and error samples, which the generic tests run in every layout.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/ops/sample.h"

namespace losstape::testing {

// A call that must be refused: it records something wrong on the tape. Every rank of a group makes it.
struct ErrorSample {
  std::string node;
  std::string name;
  // Pieces of the message, all of which must be there.
  std::vector<std::string> pieces;
  // `z` is an input of the batch's logits, with a slice.
  std::function<void(Tape& tape, Var z, const Env& env)> call;
  bool records_first = false;  // sound nodes are recorded before the one that is refused
  bool one_rank_only = false;  // only rank 1 of a group errs, the others make the call of `right`
  std::function<void(Tape& tape, Var z, const Env& env)> right{};
};

// The names under which nodes and losses are registered.
[[nodiscard]] const std::vector<std::string>& registered_nodes();

[[nodiscard]] const std::vector<Sample>& samples();
[[nodiscard]] const std::vector<ErrorSample>& error_samples();

// The parts of the table, a file each.
void add_vocab_samples(std::vector<Sample>& table);
void add_column_samples(std::vector<Sample>& table);
void add_loss_samples(std::vector<Sample>& table);

// A token column of a pack in prediction rows: the mask of the losses.
[[nodiscard]] inline auto token_mask(auto& tape, const Env& env) {
  return tape.constant(env.packing.to_predictions(env.batch.token_mask));
}

}  // namespace losstape::testing
