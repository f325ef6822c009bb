// SPDX-License-Identifier: Apache-2.0
// How numbers become text and come back, and what JSON is refused.
#include "cli/json.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "engine/error.h"

namespace losstape {
namespace {

constexpr std::size_t kQuotedBytes = 80;
constexpr std::size_t kDeepest = 32;
constexpr std::size_t kLongestDocument = std::size_t{256} * 1024;

[[noreturn]] void refuse(std::string expected, std::string found, std::string hint = {}) {
  throw DataError({"json", std::move(expected), std::move(found), std::move(hint)});
}

// Refuses what nlohmann's parser lets through: deep nesting, and duplicate keys, of which it would keep the last.
class DocumentRules {
 public:
  explicit DocumentRules(const std::string& source) : source_(source) {}

  void see(Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (keys_.size() == kDeepest) {
          refuse("at most " + std::to_string(kDeepest) + " levels of nesting", "more in " + source_);
        }
        keys_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end: keys_.pop_back(); break;
      case Json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second) refuse("every key once", in_quotes(key) + " twice in " + source_);
        break;
      }
      case Json::parse_event_t::value: break;
    }
  }

 private:
  const std::string& source_;
  std::vector<std::set<std::string>> keys_;  // of every open object; empty for an array
};

}  // namespace

std::string number(double value) {
  if (std::isnan(value)) return "nan";
  // JSON readers take -0 for an integer and lose its sign.
  if (value == 0 && std::signbit(value)) return "-0.0";
  std::array<char, 32> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

Json to_json(double value) {
  if (std::isfinite(value)) return value;
  return number(value);
}

double from_json_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  refuse(R"(a number, "inf", "-inf" or "nan")",
         value.is_string() ? in_quotes(value.get_ref<const std::string&>()) : std::string("a JSON ") + value.type_name());
}

Json parse_json(std::string_view text, const std::string& source) {
  if (text.size() > kLongestDocument) {
    refuse("at most " + std::to_string(kLongestDocument) + " bytes of JSON", std::to_string(text.size()) + " in " + source);
  }
  // nlohmann's lexer takes a zero byte for the end of the text, and would ignore the rest.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    refuse("JSON", "a zero byte at offset " + std::to_string(zero) + " of " + source);
  }
  DocumentRules rules(source);
  const auto rule = [&rules](int /*depth*/, Json::parse_event_t event, const Json& parsed) {
    rules.see(event, parsed);
    return true;
  };
  try {
    return Json::parse(text, rule);
  } catch (const Json::parse_error& error) {
    // The library's own message repeats the text, which may be long and unprintable.
    refuse("JSON", "a syntax error at byte " + std::to_string(error.byte) + " of " + source, "it reads " + in_quotes(text));
  } catch (const Json::out_of_range&) {
    refuse("numbers that a double can hold", "a larger one in " + source);
  }
}

std::string in_quotes(std::string_view text) {
  const bool long_text = text.size() > kQuotedBytes;
  if (long_text) {
    std::size_t end = kQuotedBytes;
    // Not in the middle of a UTF-8 character, whose later bytes are all 10xxxxxx.
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
    text = text.substr(0, end);
  }
  return Json(std::string(text) + (long_text ? "…" : "")).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace losstape
