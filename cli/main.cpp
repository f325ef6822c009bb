// SPDX-License-Identifier: Apache-2.0
// The process: its arguments, its streams, its exit status.
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "cli/program.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return losstape::cli::run(arguments, {std::cout, std::cerr, ::isatty(STDERR_FILENO) == 1});
}
