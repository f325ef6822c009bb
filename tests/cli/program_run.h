// SPDX-License-Identifier: Apache-2.0
// The program called as from a shell: what it printed, and its exit status.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/program.h"

namespace losstape::testing {

struct Printed {
  int status = 0;
  std::string out;
  std::string err;

  [[nodiscard]] Json json() const { return Json::parse(out); }
  // The last line of what was printed.
  [[nodiscard]] std::string last_line() const {
    const std::size_t end = out.find_last_not_of('\n');
    const std::size_t begin = out.find_last_of('\n', end);
    return out.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin + 1) + 1);
  }
};

inline Printed losstape(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  const int status = cli::run(arguments, {out, err, false});
  return {status, out.str(), err.str()};
}

}  // namespace losstape::testing
