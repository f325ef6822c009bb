// SPDX-License-Identifier: Apache-2.0
// The V-sized memory of a run: a rank's share of the logits, its slice, and whole gradients joined from slices.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "engine/dtype.h"
#include "engine/view.h"

namespace losstape::cli {

// Dense row-major memory of a dtype that is known when the program runs.
class Matrix {
 public:
  Matrix() = default;
  Matrix(DType dtype, Index rows, Index cols);

  [[nodiscard]] View view() const;
  [[nodiscard]] MutableView mutable_view();
  // Columns [begin, begin + part.cols) become those of `part`, which has the same dtype and rows. Ranks may do this at once
  // with columns of their own.
  void set_columns(Index begin, const View& part);

 private:
  DType dtype_ = DType::f32;
  Index rows_ = 0;
  Index cols_ = 0;
  std::vector<double> memory_;  // aligned for every dtype
};

// Columns [begin, end) of logits: a view of them where they have the wanted dtype, else a rounded copy.
class LogitsShard {
 public:
  LogitsShard(const View& logits, Index begin, Index end, std::optional<DType> dtype);

  [[nodiscard]] const View& view() const { return view_; }

 private:
  Matrix rounded_;
  View view_;
};

// Whether rounding to a dtype leaves every element as it is. NaN stays NaN.
[[nodiscard]] bool rounding_is_exact(const View& values, DType dtype);

// A rank's slice, filled with a NaN that no computation makes, so that what was not written shows.
template <class R>
class Slice {
 public:
  Slice(Index rows, Index cols) : rows_(rows), cols_(cols), memory_(static_cast<std::size_t>(rows * cols), marked()) {}

  [[nodiscard]] MutableView view() { return MutableView(memory_.data(), rows_, cols_); }
  [[nodiscard]] std::size_t bytes() const { return memory_.size() * sizeof(R); }
  [[nodiscard]] bool untouched() const {
    using Bits = std::conditional_t<sizeof(R) == sizeof(std::uint64_t), std::uint64_t, std::uint32_t>;
    const auto mark = std::bit_cast<Bits>(marked());
    for (const R element : memory_) {
      if (std::bit_cast<Bits>(element) != mark) return false;
    }
    return true;
  }
  [[nodiscard]] double sum_of_squares() const {
    double sum = 0;
    for (const R& element : memory_) sum += static_cast<double>(element) * static_cast<double>(element);
    return sum;
  }

 private:
  static R marked() {
    R mark = std::numeric_limits<R>::quiet_NaN();
    std::memcpy(&mark, "cli", 2);  // into the lowest bits of the payload
    return mark;
  }

  Index rows_;
  Index cols_;
  std::vector<R> memory_;
};

}  // namespace losstape::cli
