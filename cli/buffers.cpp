// SPDX-License-Identifier: Apache-2.0
// Rounded copies, and slices put side by side.
#include "cli/buffers.h"

#include <algorithm>
#include <cmath>

namespace losstape::cli {
namespace {

// To and From known, the loops have no switch in them.
template <class To, class From>
void round_row(const View& from, Index r, Index begin, To* to, Index cols) {
  const From* row = from.row<From>(r) + begin * from.col_stride;
  for (Index c = 0; c < cols; ++c) to[c] = convert<To>(row[c * from.col_stride]);
}

detail::Layout columns_of(const View& logits, Index begin, Index end) {
  detail::Layout layout = logits;
  layout.cols = end - begin;
  return layout;
}

const std::byte* element(const View& view, Index begin) {
  if (view.empty()) return static_cast<const std::byte*>(view.data());
  const Index bytes = begin * view.col_stride * static_cast<Index>(size_of(view.dtype));
  return static_cast<const std::byte*>(view.data()) + bytes;
}

}  // namespace

Matrix::Matrix(DType dtype, Index rows, Index cols)
    : dtype_(dtype),
      rows_(rows),
      cols_(cols),
      memory_((static_cast<std::size_t>(rows * cols) * size_of(dtype) + sizeof(double) - 1) / sizeof(double)) {}

View Matrix::view() const { return {memory_.data(), detail::Layout{rows_, cols_, cols_, 1, dtype_, Device::cpu}}; }

MutableView Matrix::mutable_view() { return {memory_.data(), detail::Layout{rows_, cols_, cols_, 1, dtype_, Device::cpu}}; }

void Matrix::set_columns(Index begin, const View& part) {
  if (part.empty()) return;
  const std::size_t size = size_of(dtype_);
  auto* to = reinterpret_cast<std::byte*>(memory_.data());
  const auto* from = static_cast<const std::byte*>(part.data());
  for (Index r = 0; r < rows_; ++r) {
    std::memcpy(to + static_cast<std::size_t>(r * cols_ + begin) * size,
                from + static_cast<std::size_t>(r * part.row_stride) * size, static_cast<std::size_t>(part.cols) * size);
  }
}

LogitsShard::LogitsShard(const View& logits, Index begin, Index end, std::optional<DType> dtype) {
  if (!dtype || *dtype == logits.dtype) {
    view_ = View(element(logits, begin), columns_of(logits, begin, end));
    return;
  }
  rounded_ = Matrix(*dtype, logits.rows, end - begin);
  const MutableView to = rounded_.mutable_view();
  with_float_type(*dtype, [&](auto wide) {
    using To = typename decltype(wide)::type;
    with_float_type(logits.dtype, [&](auto narrow) {
      using From = typename decltype(narrow)::type;
      for (Index r = 0; r < logits.rows && to.cols > 0; ++r) round_row<To, From>(logits, r, begin, to.row<To>(r), to.cols);
    });
  });
  view_ = rounded_.view();
}

bool rounding_is_exact(const View& values, DType dtype) {
  bool exact = true;
  with_float_type(dtype, [&](auto type) {
    using To = typename decltype(type)::type;
    for (Index r = 0; r < values.rows; ++r) {
      for (Index c = 0; c < values.cols; ++c) {
        const auto value = values.get<double>(r, c);
        const auto back = convert<double>(convert<To>(value));
        exact = exact && (back == value || (std::isnan(back) && std::isnan(value)));
      }
    }
  });
  return exact;
}

}  // namespace losstape::cli
