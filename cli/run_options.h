// SPDX-License-Identifier: Apache-2.0
// Over what a batch is run: the options that every command shares.
#pragma once

#include <optional>
#include <string>

#include "cli/arguments.h"
#include "engine/dtype.h"

namespace losstape::cli {

struct RunOptions {
  int tensor_parallel = 1;       // thread ranks, each with a share of the vocabulary
  Index chunk_rows = 0;          // 0: all rows
  int threads = 0;               // of one pool for all ranks; 0: one per hardware thread
  std::optional<DType> dtype{};  // to which logits are rounded first
};

// The options as text and numbers, while they are being read.
class RunArguments {
 public:
  void declare(Arguments& arguments);
  [[nodiscard]] RunOptions options() const;

 private:
  Index tensor_parallel_ = 1;
  Index chunk_rows_ = 0;
  Index threads_ = 0;
  std::string dtype_;
  std::string communicator_ = "threads";
  std::string device_ = "cpu";
  std::string from_ = "logits";
};

}  // namespace losstape::cli
