// SPDX-License-Identifier: Apache-2.0
// `--check-gradient`: the gradient of a recorded batch against finite differences, over the same shards.
#pragma once

#include <functional>
#include <string>

#include "cli/loss_config.h"
#include "cli/recorded_batch.h"
#include "cli/run_options.h"

namespace losstape::cli {

struct GradientCheck {
  double worst_relative_error = 0;
  Index checked = 0;  // random directions, and entries of all ranks
  Index skipped_kinks = 0;
  std::string failure{};  // empty when the check passed

  static constexpr double kBound = 1e-7;
};

// The fp64 tape against central differences (engine/gradcheck.h): along random directions in which every logit moves, and
// at single logits drawn from the rows that the loss needs, half of them those of the tokens themselves. Fewer where the
// logits are many. `progress` is called on rank 0 with the share done. Errors: whatever the loss throws.
[[nodiscard]] GradientCheck check_gradient(const RecordedBatch& batch, const LossChoice& choice, const RunOptions& run,
                                           const std::function<void(double)>& progress);

}  // namespace losstape::cli
