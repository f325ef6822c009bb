// SPDX-License-Identifier: Apache-2.0
// The program without its process: arguments in, text and an exit status out.
#pragma once

#include <ostream>
#include <span>
#include <string>

namespace losstape::cli {

// Where a command writes. Results go to `out`; messages and progress to `err`.
struct Streams {
  std::ostream& out;
  std::ostream& err;
  bool progress = false;  // whether `err` is a terminal
};

inline constexpr int kGood = 0;
inline constexpr int kFailed = 1;      // a check failed, or an error in the data or the run
inline constexpr int kWrongUsage = 2;  // the arguments ask for what the program does not do

// losstape ARGUMENTS: runs a command and returns the exit status. Throws nothing.
[[nodiscard]] int run(std::span<const std::string> arguments, const Streams& streams);

// The commands. Errors: WrongUsage for arguments; whatever the run throws.
[[nodiscard]] int check_command(std::span<const std::string> arguments, const Streams& streams);
[[nodiscard]] int loss_command(std::span<const std::string> arguments, const Streams& streams);

}  // namespace losstape::cli
