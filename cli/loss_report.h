// SPDX-License-Identifier: Apache-2.0
// What `losstape loss` says: as a table for people, and as JSON for programs.
#pragma once

#include <optional>
#include <string>

#include "cli/evaluate.h"
#include "cli/gradient_check.h"

namespace losstape::cli {

struct LossReport {
  std::string file;
  LossChoice choice{};
  RunOptions run{};
  int threads = 1;
  Evaluation evaluation{};
  std::optional<GradientCheck> gradient_check{};
};

[[nodiscard]] std::string table_text(const LossReport& report, const RecordedBatch& batch);
[[nodiscard]] std::string json_text(const LossReport& report);

}  // namespace losstape::cli
