// SPDX-License-Identifier: Apache-2.0
// The error that a call must end in, for tests to look at.
#pragma once

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "engine/error.h"

namespace losstape::testing {

// Runs f and returns the error of type E that it throws. Fails the test for anything else.
template <class E = UsageError, class F>
[[nodiscard]] E refusal(F&& f) {
  try {
    std::forward<F>(f)();
  } catch (const E& error) {
    return error;
  } catch (const std::exception& error) {
    FAIL("another error: " << std::string(error.what()));
  }
  FAIL("no error");
  throw std::logic_error("FAIL returned");
}

[[nodiscard]] inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Whether an error's words contain `part`; prints them where not.
inline void check_says(const std::exception& error, const std::string& part) {
  const std::string words = error.what();
  CAPTURE(words);
  CAPTURE(part);
  CHECK(contains(words, part));
}

}  // namespace losstape::testing
