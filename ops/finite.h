// SPDX-License-Identifier: Apache-2.0
// What the reductions say of a number that is not finite where it counts.
#pragma once

#include <cmath>
#include <string>

#include "distributed/communicator.h"
#include "engine/dtype.h"

namespace losstape::detail {

// `cause`: who made the number, where that is known.
inline Status not_finite(const char* node, const char* expected, double found, Index row, const std::string& cause = {}) {
  // A NaN's sign says nothing.
  const std::string number = std::isnan(found) ? "nan" : std::to_string(found);
  return Status(UsageError({node, expected, cause.empty() ? number : number + ", " + cause, "", row}));
}

}  // namespace losstape::detail
