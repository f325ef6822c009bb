// SPDX-License-Identifier: Apache-2.0
// How an error's parts become its message.
#include "engine/error.h"

#include <utility>

namespace losstape {
namespace {

std::string message(const ErrorParts& parts) {
  std::string text = parts.operation + ": expected " + parts.expected + ", found " + parts.found;
  if (parts.row >= 0) text += " at row " + std::to_string(parts.row);
  if (parts.count > 1) text += " (" + std::to_string(parts.count) + " such rows)";
  if (!parts.hint.empty()) text += "; " + parts.hint;
  return text;
}

}  // namespace

Error::Error(ErrorParts parts) : std::runtime_error(message(parts)), parts_(std::move(parts)) {}

}  // namespace losstape
