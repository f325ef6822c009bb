// SPDX-License-Identifier: Apache-2.0
// From the first word to a command, and from what it throws to an exit status.
#include "cli/program.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "cli/arguments.h"
#include "cli/json.h"
#include "cli/loss_config.h"
#include "cli/nearest.h"

namespace losstape::cli {
namespace {

constexpr const char* kHelp = R"(losstape evaluates reinforcement-learning losses over vocabulary-parallel logits,
and writes their gradient into memory that is already there.

usage: losstape COMMAND …

  loss FILE       loss, metrics, gradient, memory and time of a recorded batch
  check PATH…     compare golden cases with what is computed for them
  --version       the version
  COMMAND --help  what a command takes

Exit status: 0 good, 1 a failed check or an error in the data, 2 wrong usage.
)";

int dispatch(std::span<const std::string> arguments, const Streams& streams) {
  const std::vector<std::string> commands{"loss", "check", "plan", "bench"};
  if (arguments.empty()) throw WrongUsage(kHelp);
  const std::string& command = arguments[0];
  if (command == "--help" || command == "-h" || command == "help") {
    streams.out << kHelp;
    return kGood;
  }
  if (command == "--version") {
    streams.out << "losstape " << LOSSTAPE_VERSION << "\n";
    return kGood;
  }
  if (command == "loss") return loss_command(arguments.subspan(1), streams);
  if (command == "check") return check_command(arguments.subspan(1), streams);
  if (command == "plan" || command == "bench") throw WrongUsage("the command " + command + " is not in this version yet");
  throw WrongUsage("there is no command " + in_quotes(command) + did_you_mean(command, commands) +
                   "\n`losstape --help` lists them");
}

}  // namespace

int run(std::span<const std::string> arguments, const Streams& streams) {
  try {
    const int status = dispatch(arguments, streams);
    if (streams.out.flush()) return status;
    streams.err << "losstape: standard output cannot be written\n";
    return kFailed;
  } catch (const WrongUsage& wrong) {
    streams.err << (arguments.empty() ? "" : "losstape: ") << wrong.what() << (arguments.empty() ? "" : "\n");
    return kWrongUsage;
  } catch (const std::exception& error) {
    streams.err << "losstape: " << error.what() << "\n";
    return kFailed;
  }
}

}  // namespace losstape::cli
