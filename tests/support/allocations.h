// SPDX-License-Identifier: Apache-2.0
// How often a program asked for memory: operator new of every kind, and malloc where nothing else has taken its place.
#pragma once

#include <cstddef>

namespace losstape::testing {

// Calls since the program began, of all threads.
[[nodiscard]] std::size_t allocations();

// Calls while f runs.
template <class F>
[[nodiscard]] std::size_t allocations_in(F&& f) {
  const std::size_t before = allocations();
  f();
  return allocations() - before;
}

}  // namespace losstape::testing
