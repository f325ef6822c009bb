// SPDX-License-Identifier: Apache-2.0
// Numbers that become text and come back, and JSON that is refused.
#include "cli/json.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/error.h"

namespace losstape {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }

// Ordinary values, edges of the format, and random bits.
std::vector<double> finite_values() {
  std::vector<double> values{0.0,
                             -0.0,
                             1,
                             -1,
                             0.1,
                             1.0 / 3,
                             1e-7,
                             1e22,
                             1e23,
                             9007199254740993.0,
                             9223372036854775808.0,
                             18446744073709551616.0,
                             std::numeric_limits<double>::max(),
                             std::numeric_limits<double>::lowest(),
                             std::numeric_limits<double>::min(),
                             std::numeric_limits<double>::denorm_min(),
                             std::nextafter(1.0, 2.0)};
  std::mt19937_64 random(7);
  while (values.size() < 20000) {
    const auto value = std::bit_cast<double>(random());
    if (std::isfinite(value)) values.push_back(value);
  }
  for (int i = 0; i < 2000; ++i) values.push_back(std::round(std::ldexp(1.0, i % 70) * 1.7) * (i % 2 == 0 ? 1 : -1));
  return values;
}

}  // namespace

TEST_SUITE("cli/json") {
  TEST_CASE("the text of a number reads back to the same bits, by strtod and as JSON") {
    for (const double value : finite_values()) {
      const std::string text = number(value);
      CAPTURE(text);
      REQUIRE(bits(std::strtod(text.c_str(), nullptr)) == bits(value));
      REQUIRE(bits(from_json_number(parse_json(text, "a test"))) == bits(value));
    }
  }

  TEST_CASE("the text of a number is as short as it can be") {
    CHECK(number(0.1) == "0.1");
    CHECK(number(1) == "1");
    CHECK(number(-2.5) == "-2.5");
    CHECK(number(1e-7) == "1e-07");
    CHECK(number(1e300) == "1e+300");
    CHECK(number(0) == "0");
    CHECK(number(-0.0) == "-0.0");
  }

  TEST_CASE("infinities and NaN of either sign have names") {
    CHECK(number(kInfinity) == "inf");
    CHECK(number(-kInfinity) == "-inf");
    CHECK(number(kNaN) == "nan");
    CHECK(number(-kNaN) == "nan");
  }

  TEST_CASE("a dumped number reads back to the same bits") {
    for (const double value : finite_values()) {
      const std::string text = to_json(value).dump();
      CAPTURE(text);
      REQUIRE(bits(from_json_number(parse_json(text, "a test"))) == bits(value));
    }
  }

  TEST_CASE("infinities and NaN are strings in JSON, and come back") {
    CHECK(to_json(kInfinity).dump() == R"("inf")");
    CHECK(to_json(-kInfinity).dump() == R"("-inf")");
    CHECK(to_json(kNaN).dump() == R"("nan")");
    CHECK(from_json_number("inf") == kInfinity);
    CHECK(from_json_number("-inf") == -kInfinity);
    CHECK(std::isnan(from_json_number("nan")));
  }

  TEST_CASE("integers are numbers too") {
    CHECK(from_json_number(Json(7)) == 7.0);
    CHECK(from_json_number(Json(-7)) == -7.0);
    CHECK(from_json_number(Json(UINT64_MAX)) == 18446744073709551616.0);
  }

  TEST_CASE("what is neither a number nor one of the three names is refused") {
    for (const char* text : {R"("Infinity")", R"("1")", R"("")", "true", "null", "[1]", "{}"}) {
      CAPTURE(text);
      CHECK_THROWS_AS(static_cast<void>(from_json_number(parse_json(text, "a test"))), DataError);
    }
  }

  TEST_CASE("keys keep their order") { CHECK(parse_json(R"({"b": 1, "a": 2})", "a test").dump() == R"({"b":1,"a":2})"); }

  TEST_CASE("a key may appear in several objects, but only once in each") {
    CHECK(parse_json(R"({"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": 3}})", "a test").size() == 2);
    for (const char* text : {R"({"a": 1, "a": 1})", R"([{"b": {}, "a": {"c": 1}, "b": 2}])", R"({"a": 1, "\u0061": 2})"}) {
      CAPTURE(text);
      CHECK_THROWS_WITH_AS(static_cast<void>(parse_json(text, "the config")), doctest::Contains("twice in the config"),
                           DataError);
    }
  }

  TEST_CASE("bad JSON is refused with its place") {
    const std::string zero_inside("{}\0{}", 5);
    for (const std::string& text : {std::string("{\"a\": }"), std::string(""), std::string("{} {}"), std::string("nan"),
                                    std::string("1e999"), std::string("\"\xff\""), std::string("// no\n1"), zero_inside}) {
      CAPTURE(text);
      CHECK_THROWS_WITH_AS(static_cast<void>(parse_json(text, "the config")), doctest::Contains("the config"), DataError);
    }
  }

  TEST_CASE("deep nesting and long documents are refused, not recursed into") {
    const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
    CHECK_NOTHROW(static_cast<void>(parse_json(nested(32), "a test")));
    CHECK_THROWS_AS(static_cast<void>(parse_json(nested(33), "a test")), DataError);
    CHECK_THROWS_AS(static_cast<void>(parse_json(std::string(200000, '['), "a test")), DataError);
    CHECK_THROWS_AS(static_cast<void>(parse_json(std::string(300000, ' ') + "1", "a test")), DataError);
  }

  TEST_CASE("quoted text is escaped, cut between characters, and always UTF-8") {
    CHECK(in_quotes("a\"b\n") == R"("a\"b\n")");
    CHECK(in_quotes(std::string(80, 'x')) == '"' + std::string(80, 'x') + '"');
    CHECK(in_quotes(std::string(81, 'x')) == '"' + std::string(80, 'x') + "…\"");
    CHECK(in_quotes(std::string(79, 'x') + "é!") == '"' + std::string(79, 'x') + "…\"");
    CHECK(in_quotes("\xff") == "\"\xef\xbf\xbd\"");
    CHECK(in_quotes(std::string(100, '\x80')) == "\"…\"");
  }
}

}  // namespace losstape
