// SPDX-License-Identifier: Apache-2.0
// A bound relative to the right value alone.
#pragma once

#include <doctest/doctest.h>

namespace losstape::testing {

// doctest's Approx adds 1 to the values before it scales by epsilon: of small numbers it asks next to nothing. This does
// not; the right value is not 0.
[[nodiscard]] inline doctest::Approx relative(double right, double epsilon) {
  return doctest::Approx(right).epsilon(epsilon).scale(0);
}

}  // namespace losstape::testing
