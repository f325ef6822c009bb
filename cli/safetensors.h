// SPDX-License-Identifier: Apache-2.0
// Files of named tensors in the safetensors format: a checked, memory-mapped reader and an all-or-nothing writer.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/dtype.h"
#include "engine/view.h"

namespace losstape {

// A safetensors file, mapped for reading. The constructor checks the whole header, so that a file that opens has no
// tensor outside it; the tensors' bytes are read from the disk when they are touched. Dtypes are F64, F32, BF16, F16, I64,
// I32 and U8.
//
// The file must stay as it is while it is open: if another process shortens it, touching the lost part raises SIGBUS, which
// no check here can prevent. (Replacing it by renaming another over it, as write_safetensors does, is harmless.)
//
// Several threads may read one file at once. A moved-from file can only be destroyed or assigned to.
class SafetensorsFile {
 public:
  // Errors: DataError, naming the file as `path` does, where it cannot be read, is cut short, or its header breaks a rule
  // of the format: at most 100 MB of JSON, no key twice, tensors that fill the data without overlap or hole.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  [[nodiscard]] bool has(std::string_view name) const;

  // The tensor as rows and columns, row-major: [n] is the column [n, 1], [a, b] is itself, [a, b, c] is [a * b, c] and so
  // on for higher ranks, a scalar is [1, 1]. The view is valid until this file is destroyed or assigned to; moving the
  // file leaves it valid. A tensor that is not aligned for its dtype in the file is copied on the first call.
  // Errors: DataError where there is no such tensor, with the names of those that there are.
  [[nodiscard]] View view(std::string_view name) const;

  // The shape as the file has it. Errors: as for view().
  [[nodiscard]] const std::vector<Index>& shape(std::string_view name) const;

  // The strings of __metadata__; empty where the file has none.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;

  // The names of all tensors, sorted.
  [[nodiscard]] std::vector<std::string> names() const;

  // The path as it was given.
  [[nodiscard]] const std::string& path() const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

// A tensor to write: the view's elements row by row, under a shape of as many elements. An empty shape is a scalar's.
struct NamedTensor {
  std::string name;
  View view;  // any strides, on the CPU
  std::vector<Index> shape;
};

// Writes the tensors and metadata to `path`, and replaces what was there only once the new file is complete: on an error
// the old file is untouched and nothing new is left beside it. Tensors with larger elements go first, so that all are
// aligned. A path that is a symbolic link to a file replaces that file. Nothing waits for the disk (no fsync).
// Errors: DataError where the file cannot be written; UsageError for names that repeat, are "__metadata__" or not UTF-8,
// shapes that do not fit their views, and memory that is not on the CPU.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace losstape
