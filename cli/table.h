// SPDX-License-Identifier: Apache-2.0
// Tables for people: sections of labelled lines that fit 80 columns, and numbers that can be read at a glance.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/dtype.h"

namespace losstape::cli {

class Table {
 public:
  static constexpr std::size_t kWidth = 80;

  // A heading; lines follow it indented.
  void section(const std::string& title);
  // A label, and a value with its digits in one column with the others of the section; `note` explains it.
  void number(const std::string& label, const std::string& value, const std::string& note = {});
  // A label and words, on as many lines as they have: newlines break, long lines are broken between words.
  void words(const std::string& label, const std::string& text);

  [[nodiscard]] std::string text() const;

 private:
  enum class Form : unsigned char { section, number, words };
  struct Line {
    Form form;
    std::string label;
    std::string value;
    std::string note;
  };
  std::vector<Line> lines_;
};

// 1,507,328
[[nodiscard]] std::string grouped(Index count);
// 1.44 MiB
[[nodiscard]] std::string binary_size(std::size_t bytes);
// 1.23 ms
[[nodiscard]] std::string duration(double seconds);
// Seven significant digits: 0.01234567, 1.234567e-12, inf.
[[nodiscard]] std::string digits(double value);
// 3.2e-11
[[nodiscard]] std::string short_number(double value);
// "1 rank", "2 ranks"
[[nodiscard]] std::string counted(Index count, const std::string& what);
// The path, with "…" for its beginning where it is longer than `most`.
[[nodiscard]] std::string tail(const std::string& path, std::size_t most);

}  // namespace losstape::cli
