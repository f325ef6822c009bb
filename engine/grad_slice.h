// SPDX-License-Identifier: Apache-2.0
// Where a node writes a gradient: memory that is already there, and the rule for its first and later contributions.
#pragma once

#include <cstring>

#include "engine/dtype.h"
#include "engine/view.h"

namespace losstape {

// How an input's slice takes its gradient.
enum class Grad : unsigned char {
  overwrite,   // the first contribution of a backward stores, later ones add; what was there before is gone
  accumulate,  // every contribution adds to what is there (micro-batches)
  zeroed,      // the caller says that the slice holds zeros: rows without gradient are not touched. From the second
               // backward on it counts as overwrite
};

// Whether a slice may be narrower than the tape's real type. Each write then narrows its real once, to nearest even.
enum class SliceRounding : unsigned char { refused, allowed };

[[nodiscard]] constexpr const char* name(Grad grad) {
  switch (grad) {
    case Grad::overwrite: return "overwrite";
    case Grad::accumulate: return "accumulate";
    case Grad::zeroed: return "zeroed";
  }
  return "?";
}

// What a write does to the element that it meets.
enum class Beta : unsigned char {
  store,           // the element is undefined: every element must be written
  store_on_zeros,  // the element is 0: an element whose gradient is 0 may be left alone
  add,             // the element holds earlier contributions
};

// The gradient of one input of a node, [rows, cols]. A backward touches each element once, in any order, from any thread:
// write() or zero_row(); a node that meets an element more than once takes scatter() first.
// R is the tape's real type; the memory is R, or a 16-bit float where the caller allowed it.
template <class R>
class GradSlice {
 public:
  GradSlice() = default;
  GradSlice(const MutableView& memory, Beta beta) : memory_(memory), beta_(beta), wanted_(true) {}

  // Empty where nobody wants this gradient: writes then do nothing.
  [[nodiscard]] explicit operator bool() const { return wanted_; }
  [[nodiscard]] Index rows() const { return memory_.rows; }
  [[nodiscard]] Index cols() const { return memory_.cols; }
  [[nodiscard]] DType dtype() const { return memory_.dtype; }
  [[nodiscard]] const MutableView& memory() const { return memory_; }
  // 0 where a write stores, 1 where it adds: the argument of that name of a GEMM.
  [[nodiscard]] R beta() const { return beta_ == Beta::add ? R(1) : R(0); }
  [[nodiscard]] bool adds() const { return beta_ == Beta::add; }

  // Stores or adds one element.
  void write(Index r, Index c, double value) const {
    if (!wanted_) return;
    const Index at = r * memory_.row_stride + c * memory_.col_stride;
    if (memory_.dtype == dtype_of<R>) {
      put<R>(at, value);
    } else {
      with_float_type(memory_.dtype, [&](auto type) { put<typename decltype(type)::type>(at, value); });
    }
  }
  void write(Index r, double value) const { write(r, 0, value); }

  // Says that row r has no gradient: exact zeros where the row is undefined, untouched otherwise.
  void zero_row(Index r) const {
    if (beta_ != Beta::store || !wanted_ || memory_.empty()) return;
    const std::size_t size = size_of(memory_.dtype);
    auto* row = static_cast<std::byte*>(memory_.data()) + r * memory_.row_stride * static_cast<Index>(size);
    if (memory_.col_stride == 1) {
      std::memset(row, 0, static_cast<std::size_t>(memory_.cols) * size);  // +0 of every float type is all zero bits
    } else {
      for (Index c = 0; c < memory_.cols; ++c) std::memset(row + c * memory_.col_stride * static_cast<Index>(size), 0, size);
    }
  }

  // This slice with every element defined (zero-filled where it was not), so that any number of writes add.
  [[nodiscard]] GradSlice scatter() const {
    for (Index r = 0; r < rows(); ++r) zero_row(r);
    return then();
  }

  // This slice for the next contribution of the same node: adds. For slices that every chunk touches (a weight's).
  [[nodiscard]] GradSlice then() const { return wanted_ ? GradSlice(memory_, Beta::add) : GradSlice(); }

 private:
  template <class T>
  void put(Index at, double value) const {
    T& element = static_cast<T*>(memory_.data())[at];
    element = convert<T>(adds() ? static_cast<R>(convert<R>(element) + static_cast<R>(value)) : static_cast<R>(value));
  }

  MutableView memory_;
  Beta beta_ = Beta::store;
  bool wanted_ = false;
};

}  // namespace losstape
