// SPDX-License-Identifier: Apache-2.0
// Errors into plain bytes and back.
#include "distributed/status.h"

#include <algorithm>
#include <cstddef>
#include <string>

namespace losstape {
namespace {

template <std::size_t N>
void copy(char (&to)[N], const std::string& from) {
  std::size_t length = std::min(from.size(), N - 1);
  const auto inside = [&](std::size_t at) { return (static_cast<unsigned char>(from[at]) & 0xC0U) == 0x80U; };
  while (length > 0 && length < from.size() && inside(length)) --length;  // never half a character of UTF-8
  std::copy_n(from.begin(), length, to);
  to[length] = '\0';
}

}  // namespace

Status::Status(const Error& error) : kind(Kind::usage), row(error.row()), count(error.count()) {
  if (dynamic_cast<const DataError*>(&error) != nullptr) kind = Kind::data;
  if (dynamic_cast<const DeviceError*>(&error) != nullptr) kind = Kind::device;
  if (dynamic_cast<const CommError*>(&error) != nullptr) kind = Kind::comm;
  copy(operation, error.operation());
  copy(expected, error.expected());
  copy(found, error.found());
  copy(hint, error.hint());
}

void Status::raise(int group_size) const {
  if (ok()) return;
  std::string where = found;
  if (group_size > 1) where += " on rank " + std::to_string(rank);
  const ErrorParts parts{operation, expected, where, hint, row, count};
  switch (kind) {
    case Kind::ok: return;
    case Kind::usage: throw UsageError(parts);
    case Kind::data: throw DataError(parts);
    case Kind::device: throw DeviceError(parts);
    case Kind::comm: throw CommError(parts);
  }
}

}  // namespace losstape
