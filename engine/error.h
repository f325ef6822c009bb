// SPDX-License-Identifier: Apache-2.0
// What the library throws: four kinds of error, each saying where, what was expected, what was found, and what to do.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace losstape {

// The parts of an error message. `row` and `count` are set for errors in data: the first bad row and how many rows are bad.
struct ErrorParts {
  std::string operation;  // the function or node that refused, as the caller wrote it: "vocab_stats"
  std::string expected;
  std::string found;
  std::string hint{};
  std::int64_t row = -1;
  std::int64_t count = 0;
};

// Base of everything that losstape throws. what() is "operation: expected …, found … (hint)".
class Error : public std::runtime_error {
 public:
  explicit Error(ErrorParts parts);

  [[nodiscard]] const ErrorParts& parts() const noexcept { return parts_; }
  [[nodiscard]] const std::string& operation() const noexcept { return parts_.operation; }
  [[nodiscard]] const std::string& expected() const noexcept { return parts_.expected; }
  [[nodiscard]] const std::string& found() const noexcept { return parts_.found; }
  [[nodiscard]] const std::string& hint() const noexcept { return parts_.hint; }
  [[nodiscard]] std::int64_t row() const noexcept { return parts_.row; }
  [[nodiscard]] std::int64_t count() const noexcept { return parts_.count; }

 private:
  ErrorParts parts_;
};

// The caller can mend it: shapes, dtypes, aliasing, labels, options. Nothing was written and the tape is as it was; only one
// that leaves a node's backward may come after slices were touched (see BasicTape).
class UsageError : public Error {
  using Error::Error;
};

// A file is truncated, lies about itself, or lacks what was asked of it.
class DataError : public Error {
  using Error::Error;
};

// A device is missing, or failed.
class DeviceError : public Error {
  using Error::Error;
};

// A rank failed, stalled or does not agree with its peers.
class CommError : public Error {
  using Error::Error;
};

}  // namespace losstape
