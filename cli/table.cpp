// SPDX-License-Identifier: Apache-2.0
// Columns and their widths, and how numbers are cut.
#include "cli/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "cli/json.h"

namespace losstape::cli {
namespace {

// Characters on the screen: bytes of UTF-8 that begin one.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U; }));
}

std::string padded(std::string text, std::size_t to) {
  const std::size_t has = width(text);
  if (has < to) text.append(to - has, ' ');
  return text;
}

std::string printed(const char* format, double value) {
  std::array<char, 48> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

}  // namespace

void Table::section(const std::string& title) { lines_.push_back({Form::section, title, "", ""}); }

void Table::number(const std::string& label, const std::string& value, const std::string& note) {
  lines_.push_back({Form::number, label, value, note});
}

void Table::words(const std::string& label, const std::string& text) { lines_.push_back({Form::words, label, text, ""}); }

std::string Table::text() const {
  // Labels of numbers and of words are columns of their own.
  constexpr std::size_t kIndent = 2;
  std::size_t number_labels = 0;
  std::size_t word_labels = 0;
  std::size_t values = 0;
  for (const Line& line : lines_) {
    if (line.form == Form::section) continue;
    std::size_t& labels = line.form == Form::number ? number_labels : word_labels;
    labels = std::max(labels, kIndent + width(line.label) + 2);
    if (line.form == Form::number) values = std::max(values, width(line.value));
  }
  std::string text;
  for (const Line& line : lines_) {
    if (line.form == Form::section) {
      text += (text.empty() ? "" : "\n") + line.label + "\n";
      continue;
    }
    const std::size_t labels = line.form == Form::number ? number_labels : word_labels;
    std::string row = padded(std::string(kIndent, ' ') + line.label, labels);
    if (line.form == Form::number) {
      row += std::string(values - width(line.value), ' ') + line.value + (line.note.empty() ? "" : "  " + line.note);
      text += row + "\n";
      continue;
    }
    bool empty = true;  // nothing stands on this row yet beside the label
    for (std::size_t at = 0; at < line.value.size();) {
      const std::size_t end = std::min(line.value.find_first_of(" \n", at), line.value.size());
      const std::string word = line.value.substr(at, end - at);
      if (!empty && width(row) + 1 + width(word) > kWidth) {
        text += row + "\n";
        row.assign(labels, ' ');
        empty = true;
      }
      row += (empty ? "" : " ") + word;
      empty = false;
      if (end < line.value.size() && line.value[end] == '\n') {
        text += row + "\n";
        row.assign(labels, ' ');
        empty = true;
      }
      at = end + 1;
    }
    text += row + "\n";
  }
  return text;
}

std::string grouped(Index count) {
  std::string text = std::to_string(count);
  const std::size_t sign = count < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > sign + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string binary_size(std::size_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return printed(unit == 0 ? "%.0f " : "%.2f ", value) + kUnits[unit];
}

std::string duration(double seconds) {
  if (seconds < 1e-3) return printed("%.3g µs", seconds * 1e6);
  if (seconds < 1) return printed("%.3g ms", seconds * 1e3);
  return printed("%.3g s", seconds);
}

std::string digits(double value) { return std::isfinite(value) ? printed("%.7g", value) : losstape::number(value); }

std::string short_number(double value) { return std::isfinite(value) ? printed("%.2g", value) : losstape::number(value); }

std::string counted(Index count, const std::string& what) { return grouped(count) + " " + what + (count == 1 ? "" : "s"); }

std::string tail(const std::string& path, std::size_t most) {
  if (path.size() <= most) return path;
  std::size_t from = path.size() - most;
  while (from < path.size() && (static_cast<unsigned char>(path[from]) & 0xc0U) == 0x80U) ++from;
  return "…" + path.substr(from);
}

}  // namespace losstape::cli
