// SPDX-License-Identifier: Apache-2.0
// The checks that every view passes when it is made.
#include "engine/view.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/error.h"

namespace losstape {
namespace {

std::string shape_text(const detail::Layout& layout) {
  return "[" + std::to_string(layout.rows) + ", " + std::to_string(layout.cols) + "] with strides " +
         std::to_string(layout.row_stride) + ", " + std::to_string(layout.col_stride);
}

// The addresses that a view spans, [first, last), in bytes.
struct Extent {
  std::intptr_t first;
  std::intptr_t last;
};

Extent extent(const View& view) {
  const auto size = static_cast<Index>(size_of(view.dtype));
  const Index down = (view.rows - 1) * view.row_stride * size;
  const Index across = (view.cols - 1) * view.col_stride * size;
  const auto base = reinterpret_cast<std::intptr_t>(view.data());
  return {base + std::min<Index>(down, 0) + std::min<Index>(across, 0),
          base + std::max<Index>(down, 0) + std::max<Index>(across, 0) + size};
}

// Whether every |offset| of the layout, in bytes, fits 63 bits, and the addresses too.
bool fits(const void* data, const detail::Layout& layout) {
  Index down = 0;
  Index across = 0;
  Index sum = 0;
  Index bytes = 0;
  const auto magnitude = [](Index stride) { return stride < 0 ? -stride : stride; };
  return layout.row_stride != INT64_MIN && layout.col_stride != INT64_MIN &&
         !__builtin_mul_overflow(layout.rows, magnitude(layout.row_stride), &down) &&
         !__builtin_mul_overflow(layout.cols, magnitude(layout.col_stride), &across) &&
         !__builtin_add_overflow(down, across, &sum) &&
         !__builtin_mul_overflow(sum, static_cast<Index>(size_of(layout.dtype)), &bytes) &&
         !__builtin_add_overflow(bytes, reinterpret_cast<std::intptr_t>(data), &sum) &&
         !__builtin_mul_overflow(layout.rows, layout.cols, &sum) &&
         !__builtin_mul_overflow(sum, static_cast<Index>(size_of(layout.dtype)), &bytes);
}

bool elements_share_addresses(const detail::Layout& layout) {
  const bool rows_apart = layout.rows <= 1 || layout.row_stride >= (layout.cols - 1) * layout.col_stride + 1;
  const bool cols_apart = layout.cols <= 1 || layout.col_stride >= (layout.rows - 1) * layout.row_stride + 1;
  const bool row_major = rows_apart && (layout.cols <= 1 || layout.col_stride >= 1);
  const bool column_major = cols_apart && (layout.rows <= 1 || layout.row_stride >= 1);
  return !row_major && !column_major;
}

}  // namespace

namespace detail {

Order Layout::order() const {
  if (cols <= 1 || col_stride == 1) return Order::row_major;
  if (rows <= 1 || row_stride == 1) return Order::column_major;
  return Order::strided;
}

void check_layout(const void* data, const Layout& layout, bool writable) {
  const char* operation = writable ? "MutableView" : "View";
  if (layout.rows < 0 || layout.cols < 0) {
    throw UsageError({operation, "rows and columns of at least 0", shape_text(layout)});
  }
  if (!fits(data, layout)) {
    throw UsageError({operation, "a size in bytes below 2^63", shape_text(layout) + " of " + name(layout.dtype)});
  }
  if (layout.empty()) return;
  if (data == nullptr) throw UsageError({operation, "memory for " + shape_text(layout), "a null pointer"});
  const auto alignment = static_cast<std::uintptr_t>(size_of(layout.dtype));
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) {
    throw UsageError(
        {operation,
         std::string("an address that is a multiple of ") + std::to_string(alignment) + " for " + name(layout.dtype),
         "a misaligned pointer"});
  }
  if (writable && elements_share_addresses(layout)) {
    throw UsageError({operation, "every element at an address of its own",
                      "overlapping rows or columns: " + shape_text(layout),
                      "a slice that is written needs positive strides that keep its rows apart"});
  }
}

}  // namespace detail

View View::rows_of(Index begin, Index end) const {
  if (begin < 0 || end < begin || end > rows) {
    throw UsageError({"View::rows_of", "0 ≤ begin ≤ end ≤ " + std::to_string(rows),
                      "[" + std::to_string(begin) + ", " + std::to_string(end) + ")"});
  }
  View part = *this;
  part.rows = end - begin;
  const Index bytes = begin * row_stride * static_cast<Index>(size_of(dtype));
  part.data_ = static_cast<const std::byte*>(data_) + bytes;
  return part;
}

bool overlap(const View& a, const View& b) {
  if (a.empty() || b.empty()) return false;
  const Extent x = extent(a);
  const Extent y = extent(b);
  if (x.last <= y.first || y.last <= x.first) return false;
  const Index pitch = a.row_stride * static_cast<Index>(size_of(a.dtype));
  const bool same_rows =
      pitch > 0 && pitch == b.row_stride * static_cast<Index>(size_of(b.dtype)) && a.col_stride == 1 && b.col_stride == 1;
  if (!same_rows) return true;
  // Both are column ranges of rows of one pitch: compare the ranges within a row.
  const Index a_width = a.cols * static_cast<Index>(size_of(a.dtype));
  const Index b_width = b.cols * static_cast<Index>(size_of(b.dtype));
  const Index ahead = ((y.first - x.first) % pitch + pitch) % pitch;
  return ahead < a_width || ahead + b_width > pitch;
}

}  // namespace losstape
