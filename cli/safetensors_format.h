// SPDX-License-Identifier: Apache-2.0
// What the reader and the writer of safetensors files agree on: names, limits, and the bytes of a shape.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/dtype.h"
#include "engine/error.h"

namespace losstape::detail::safetensors {

static_assert(std::endian::native == std::endian::little, "tensors are used as they stand in the file");

inline constexpr std::size_t kLengthBytes = 8;
inline constexpr std::uint64_t kLongestHeader = 100'000'000;  // the reference implementation's limit
inline constexpr std::size_t kHighestRank = 64;
inline constexpr const char* kMetadata = "__metadata__";

struct NamedDType {
  const char* text;
  DType dtype;
};
inline constexpr std::array<NamedDType, 7> kDTypes{{{"F64", DType::f64},
                                                    {"F32", DType::f32},
                                                    {"BF16", DType::bf16},
                                                    {"F16", DType::f16},
                                                    {"I64", DType::i64},
                                                    {"I32", DType::i32},
                                                    {"U8", DType::u8}}};

// A call of the system on `path` failed with errno `code`.
[[noreturn]] inline void refuse_system(const std::string& path, std::string expected, int code, std::string hint = {}) {
  throw DataError(
      {"safetensors", std::move(expected), path + ": " + std::generic_category().message(code), std::move(hint)});
}

inline std::string shape_text(const std::vector<Index>& shape) {
  std::string text = "[";
  for (const Index extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

// What a shape comes to: the rows and columns of its view, and its bytes.
struct Measure {
  Index rows = 1;
  Index cols = 1;
  Index bytes = 0;
};

// Nothing where the non-zero extents alone make 2^62 bytes: a view adds two such sizes, even when it is empty.
inline std::optional<Measure> measure(const std::vector<Index>& shape, DType dtype) {
  auto product = static_cast<Index>(size_of(dtype));
  bool empty = false;
  for (const Index extent : shape) {
    if (extent == 0) empty = true;
    if (extent != 0 && __builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  }
  if (product >= Index{1} << 62) return std::nullopt;
  Measure m;
  m.bytes = empty ? 0 : product;
  const std::size_t leading = shape.size() < 2 ? shape.size() : shape.size() - 1;
  for (std::size_t i = 0; i < leading; ++i) {
    if (shape[i] == 0) m.rows = 0;
    m.rows *= std::max<Index>(shape[i], 1);
  }
  if (leading < shape.size()) m.cols = shape.back();
  return m;
}

// An open file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] int get() const { return fd_; }
  // Closes it now, for the error that a destructor would lose: 0, or an errno.
  [[nodiscard]] int close() { return ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno; }

 private:
  int fd_;
};

}  // namespace losstape::detail::safetensors
