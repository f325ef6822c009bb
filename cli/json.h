// SPDX-License-Identifier: Apache-2.0
// JSON as losstape reads and writes it: keys stay in order, numbers keep their bits, infinities and NaN are strings.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace losstape {

using Json = nlohmann::ordered_json;

// The shortest text that reads back to the same bits: 0.1, 1e-07, -0.0. Infinities and NaN are inf, -inf and nan, without
// quotes: this is the text of tables and messages; to_json() is for JSON.
[[nodiscard]] std::string number(double value);

// A JSON number, or one of the strings "inf", "-inf" and "nan". Dumping the result keeps the bits of every finite value.
[[nodiscard]] Json to_json(double value);

// The inverse of to_json(). Integers are taken too, rounded to the nearest double.
// Errors: DataError for anything but a number or one of the three strings.
[[nodiscard]] double from_json_number(const Json& value);

// Parses a small document, such as a configuration; `source` names it in messages: "metadata config of batch.safetensors".
// Errors: DataError for bad JSON, a key that an object has twice, nesting deeper than 32, more than 256 KiB of text.
[[nodiscard]] Json parse_json(std::string_view text, const std::string& source);

// Text for a message: in quotes, escaped as in JSON, and cut where it is long. Bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::string in_quotes(std::string_view text);

}  // namespace losstape
