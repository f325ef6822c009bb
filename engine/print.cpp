// SPDX-License-Identifier: Apache-2.0
// Columns as wide as what stands in them.
#include "engine/print.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

namespace losstape {
namespace {

using Row = std::array<std::string, 6>;

std::string shape_text(const Shape& shape) {
  return "[" + std::to_string(shape.rows) + ", " + std::to_string(shape.cols) + "]";
}

std::string var_text(std::uint32_t number) { return "%" + std::to_string(number); }

// Equal neighbours as one: "[184, 1]' + 9 x [184, 1]".
std::string outputs_text(const std::vector<Shape>& outputs) {
  std::string text;
  for (std::size_t k = 0; k < outputs.size();) {
    std::size_t next = k + 1;
    while (next < outputs.size() && outputs[next] == outputs[k] && outputs[next].adjoint == outputs[k].adjoint) ++next;
    text += text.empty() ? "" : " + ";
    if (next - k > 1) text += std::to_string(next - k) + " x ";
    text += shape_text(outputs[k]) + (outputs[k].adjoint == Adjoint::yes ? "'" : "");
    k = next;
  }
  return text;
}

std::string align(const std::vector<Row>& rows) {
  std::array<std::size_t, 6> width{};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      line += row[c] + std::string(width[c] - row[c].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

template <class R>
std::string print(const BasicTape<R>& tape) {
  std::map<std::uint32_t, Row> by_var;  // in the order of recording: a Var's number grows
  for (const RootSummary& root : tape.roots()) {
    std::string kind = "constant";
    if (root.slice) kind = root.in_place ? "input in place" : std::string("input, ") + name(*root.slice);
    by_var[root.index] = {var_text(root.index), kind, "", shape_text(root.shape) + " " + name(root.dtype), "", ""};
  }
  for (const RecordSummary& record : tape.records()) {
    std::string inputs;
    for (const std::uint32_t input : record.inputs) inputs += (inputs.empty() ? "" : " ") + var_text(input);
    by_var[record.first_output] = {var_text(record.first_output),
                                   record.name,
                                   inputs,
                                   outputs_text(record.outputs),
                                   std::to_string(record.saved_bytes),
                                   std::to_string(record.workspace_bytes)};
  }
  std::vector<Row> rows{{"var", "node", "inputs", "shapes (' has an adjoint)", "saved", "scratch"}};
  for (const auto& [number, row] : by_var) rows.push_back(row);
  return align(rows);
}

template std::string print(const BasicTape<float>& tape);
template std::string print(const BasicTape<double>& tape);

}  // namespace losstape
