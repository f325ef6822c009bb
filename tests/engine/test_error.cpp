// SPDX-License-Identifier: Apache-2.0
#include "engine/error.h"

#include <doctest/doctest.h>

#include <string>
#include <type_traits>

using namespace losstape;

TEST_SUITE("engine/error") {
  TEST_CASE("a message says operation, what was expected, what was found, where, how often, and what to do") {
    const UsageError error({"vocab_stats", "a target below 8", "9", "check the ids", 3, 2});
    CHECK(std::string(error.what()) ==
          "vocab_stats: expected a target below 8, found 9 at row 3 (2 such rows); check the ids");
    CHECK(error.operation() == "vocab_stats");
    CHECK(error.expected() == "a target below 8");
    CHECK(error.found() == "9");
    CHECK(error.hint() == "check the ids");
    CHECK(error.row() == 3);
    CHECK(error.count() == 2);
  }
  TEST_CASE("parts that are not there leave no trace in the message") {
    CHECK(std::string(DataError({"read", "8 bytes", "7"}).what()) == "read: expected 8 bytes, found 7");
    CHECK(std::string(DataError({"read", "a", "b", "", 0, 1}).what()) == "read: expected a, found b at row 0");
    CHECK(DataError({"read", "8 bytes", "7"}).row() == -1);
  }
  TEST_CASE("the four kinds are errors of the library and are told apart") {
    CHECK(std::is_base_of_v<Error, UsageError>);
    CHECK(std::is_base_of_v<Error, DataError>);
    CHECK(std::is_base_of_v<Error, DeviceError>);
    CHECK(std::is_base_of_v<Error, CommError>);
    CHECK_FALSE(std::is_base_of_v<UsageError, CommError>);
    CHECK_THROWS_AS(throw CommError({"join", "a", "b"}), Error);
  }
}
