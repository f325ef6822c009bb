// SPDX-License-Identifier: Apache-2.0
// Views of memory that somebody else owns: a shape, two strides, a dtype and a device. Nothing here copies or allocates.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "engine/device.h"
#include "engine/dtype.h"

namespace losstape {

enum class Order : unsigned char {
  row_major,     // a row's elements are neighbours
  column_major,  // a column's elements are neighbours (Eigen's default)
  strided,       // neither
};

[[nodiscard]] constexpr const char* name(Order order) {
  switch (order) {
    case Order::row_major: return "row-major";
    case Order::column_major: return "column-major";
    case Order::strided: return "strided";
  }
  return "?";
}

namespace detail {

// An Eigen matrix, Map, Ref or Block with direct access, known by its members: the engine does not include Eigen.
template <class M>
concept EigenDense = requires(const M& m) {
  typename M::Scalar;
  { m.rowStride() } -> std::convertible_to<Index>;
  { m.colStride() } -> std::convertible_to<Index>;
  { m.data() } -> std::convertible_to<const typename M::Scalar*>;
};

// Eigen objects that own their memory: a view of a temporary one would dangle.
template <class M>
concept OwningEigen = EigenDense<M> && requires(M& m) {
  m.conservativeResize(1, 1);
};

// What a View and a MutableView have in common; element (r, c) stands at data[r * row_stride + c * col_stride].
struct Layout {
  Index rows = 0;
  Index cols = 0;
  Index row_stride = 0;  // in elements; may be 0 or negative where the view is only read
  Index col_stride = 1;
  DType dtype = DType::f32;
  Device device = Device::cpu;

  [[nodiscard]] bool empty() const { return rows == 0 || cols == 0; }
  [[nodiscard]] Index size() const { return rows * cols; }
  [[nodiscard]] Order order() const;
};

void check_layout(const void* data, const Layout& layout, bool writable);

struct Trusted;

}  // namespace detail

// Memory to read. Shapes are [rows, cols]; a vector is a column [n, 1].
// Errors: UsageError for negative or overflowing sizes, null or misaligned data.
class View : public detail::Layout {
 public:
  View() = default;
  template <Element T>
  View(const T* data, Index height, Index width = 1) : View(data, height, width, width, 1) {}
  template <Element T>
  View(const T* data, Index height, Index width, Index row_step, Index col_step = 1)
      : Layout{height, width, row_step, col_step, dtype_of<T>, Device::cpu}, data_(data) {
    detail::check_layout(data_, *this, false);
  }
  View(const void* data, const Layout& layout) : Layout(layout), data_(data) { detail::check_layout(data_, *this, false); }
  // NOLINTBEGIN(google-explicit-constructor): a view stands for the memory it looks at
  template <Element T>
  View(std::span<const T> column) : View(column.data(), static_cast<Index>(column.size())) {}
  template <Element T>
  View(std::span<T> column) : View(column.data(), static_cast<Index>(column.size())) {}
  template <Element T>
  View(const std::vector<T>& column) : View(column.data(), static_cast<Index>(column.size())) {}
  template <Element T>
  View(std::vector<T>&& column) = delete;  // the view would dangle
  template <detail::EigenDense M>
  View(const M& m) : View(m.data(), m.rows(), m.cols(), m.rowStride(), m.colStride()) {}
  template <detail::OwningEigen M>
  requires(!std::is_reference_v<M> && !std::is_const_v<M>) View(M&& m)
  = delete;  // the view would dangle
  // NOLINTEND(google-explicit-constructor)

  [[nodiscard]] const void* data() const { return data_; }

  template <Element T>
  [[nodiscard]] const T* row(Index r) const {
    return static_cast<const T*>(data_) + r * row_stride;
  }

  // Element (r, c) converted to To. The switch is for glue code; kernels take typed rows.
  template <class To>
  [[nodiscard]] To get(Index r, Index c = 0) const {
    const Index at = r * row_stride + c * col_stride;
    switch (dtype) {
      case DType::f64: return convert<To>(static_cast<const double*>(data_)[at]);
      case DType::f32: return convert<To>(static_cast<const float*>(data_)[at]);
      case DType::bf16: return convert<To>(static_cast<const BFloat16*>(data_)[at]);
      case DType::f16: return convert<To>(static_cast<const Float16*>(data_)[at]);
      case DType::i64: return convert<To>(static_cast<const std::int64_t*>(data_)[at]);
      case DType::i32: return convert<To>(static_cast<const std::int32_t*>(data_)[at]);
      case DType::u8: return convert<To>(static_cast<const std::uint8_t*>(data_)[at]);
    }
    return To{};
  }

  // Rows [begin, end) of this view. Errors: UsageError for rows that it does not have.
  [[nodiscard]] View rows_of(Index begin, Index end) const;

 private:
  friend struct detail::Trusted;

  const void* data_ = nullptr;
};

// Memory to write. No two elements may share an address.
// Errors: UsageError as for View, and for strides under which rows or columns overlap.
class MutableView : public detail::Layout {
 public:
  MutableView() = default;
  template <Element T>
  MutableView(T* data, Index height, Index width = 1) : MutableView(data, height, width, width, 1) {}
  template <Element T>
  MutableView(T* data, Index height, Index width, Index row_step, Index col_step = 1)
      : Layout{height, width, row_step, col_step, dtype_of<T>, Device::cpu}, data_(data) {
    detail::check_layout(data_, *this, true);
  }
  MutableView(void* data, const Layout& layout) : Layout(layout), data_(data) { detail::check_layout(data_, *this, true); }
  // NOLINTBEGIN(google-explicit-constructor): a view stands for the memory it looks at
  template <Element T>
  MutableView(std::span<T> column) : MutableView(column.data(), static_cast<Index>(column.size())) {}
  template <Element T>
  MutableView(std::vector<T>& column) : MutableView(column.data(), static_cast<Index>(column.size())) {}
  template <detail::EigenDense M>
  requires(!std::is_const_v<std::remove_pointer_t<decltype(std::declval<M&>().data())>>) MutableView(M& m)
      : MutableView(m.data(), m.rows(), m.cols(), m.rowStride(), m.colStride()) {}
  // A Block or Map that is a temporary itself, of memory that is not.
  template <detail::EigenDense M>
  requires(!std::is_reference_v<M> && !detail::OwningEigen<M> &&
           !std::is_const_v<std::remove_pointer_t<decltype(std::declval<M&>().data())>>) MutableView(M&& m)
      : MutableView(m.data(), m.rows(), m.cols(), m.rowStride(), m.colStride()) {}
  operator View() const;
  // NOLINTEND(google-explicit-constructor)

  [[nodiscard]] void* data() const { return data_; }

  template <Element T>
  [[nodiscard]] T* row(Index r) const {
    return static_cast<T*>(data_) + r * row_stride;
  }

 private:
  friend struct detail::Trusted;

  void* data_ = nullptr;
};

namespace detail {

// Views without the checks: of memory that passed them before, or that the tape laid out itself.
struct Trusted {
  static View view(const void* data, const Layout& layout) {
    View made;
    static_cast<Layout&>(made) = layout;
    made.data_ = data;
    return made;
  }
  static MutableView mutable_view(void* data, const Layout& layout) {
    MutableView made;
    static_cast<Layout&>(made) = layout;
    made.data_ = data;
    return made;
  }
};

}  // namespace detail

inline MutableView::operator View() const { return detail::Trusted::view(data_, *this); }

// Whether two views can touch one byte. Column ranges of one row-major buffer are told apart; other strided views that
// interleave count as overlapping.
[[nodiscard]] bool overlap(const View& a, const View& b);

}  // namespace losstape
