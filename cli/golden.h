// SPDX-License-Identifier: Apache-2.0
// One golden case: what is computed for it, and whether that is right.
#pragma once

#include <optional>
#include <string>

#include "cli/compare.h"
#include "cli/run_options.h"
#include "engine/parallel.h"

namespace losstape::cli {

enum class Outcome : unsigned char { passed, failed, skipped };

struct Verdict {
  Outcome outcome = Outcome::passed;
  std::string kind{};
  std::string reason{};             // why it failed or was skipped
  std::optional<Mismatch> worst{};  // the worst element, where values were compared
};

// Runs the case in a file over the layout of `run`, its slices audited and filled with NaN before, and compares the expected
// tensors and metrics that it has; one with expect_error must be refused on every rank with that text and nothing written.
// A kind or configuration of a later version is skipped, and so are logits that `run.dtype` would change. Throws nothing
// that a file can cause: a file that cannot be read has failed.
[[nodiscard]] Verdict check_case(const std::string& path, const RunOptions& run, Pool& pool);

}  // namespace losstape::cli
