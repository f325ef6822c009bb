// SPDX-License-Identifier: Apache-2.0
// The losses by their definitions, in plain fp64 loops, with derivatives worked out by hand: shares nothing with ops/losses.
#pragma once

#include <vector>

#include "ops/losses/policy_functor.h"
#include "tests/ops/batch.h"

namespace losstape::testing {

// Loss, its slope with respect to each row's log-prob, and metrics in the order in which the loss lists them.
struct LossTruth {
  double loss = 0;
  reference::Vector slope;
  std::vector<double> metrics;
};

[[nodiscard]] LossTruth nll_truth(const Batch& batch, const reference::Vector& logp);
[[nodiscard]] LossTruth policy_truth(const Batch& batch, const reference::Vector& logp, const PolicyLossOptions& options);

// By what a row's value is multiplied in each kind of mean, and the masks, by definition.
struct Weights {
  std::vector<double> mask;      // t · a of a row
  std::vector<double> token;     // t a / (N_tokens + 1e-8)
  std::vector<double> sequence;  // a t / (Σ t + 1e-8) / (N_sequences + 1e-8)
  double tokens = 0;             // Σ t a
  double samples = 0;            // Σ a
};
[[nodiscard]] Weights weights_of(const Batch& batch);

}  // namespace losstape::testing
