// SPDX-License-Identifier: Apache-2.0
// Marks, and the walk over strided memory that lays and finds them.
#include "engine/audit.h"

#include <bit>
#include <limits>

namespace losstape::detail {
namespace {

template <class T>
struct Bits;
template <>
struct Bits<double> {
  using type = std::uint64_t;
  static constexpr type mark = 0x7ff8c0ded15ea5edU;
};
template <>
struct Bits<float> {
  using type = std::uint32_t;
  static constexpr type mark = 0x7fd15eedU;
};
template <>
struct Bits<BFloat16> {
  using type = std::uint16_t;
  static constexpr type mark = 0x7fd1U;
};
template <>
struct Bits<Float16> {
  using type = std::uint16_t;
  static constexpr type mark = 0x7ed1U;
};

template <class T>
void fill(const MutableView& memory, T value) {
  for (Index r = 0; r < memory.rows; ++r) {
    T* row = memory.row<T>(r);
    for (Index c = 0; c < memory.cols; ++c) row[c * memory.col_stride] = value;
  }
}

}  // namespace

void fill_with_marks(const MutableView& memory) {
  with_float_type(memory.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    fill<T>(memory, std::bit_cast<T>(Bits<T>::mark));
  });
}

Index first_marked_row(const View& memory) {
  Index found = -1;
  with_float_type(memory.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    for (Index r = 0; r < memory.rows && found < 0; ++r) {
      const T* row = memory.row<T>(r);
      for (Index c = 0; c < memory.cols; ++c) {
        if (std::bit_cast<typename Bits<T>::type>(row[c * memory.col_stride]) == Bits<T>::mark) found = r;
      }
    }
  });
  return found;
}

void fill_with_nan(const MutableView& memory) {
  with_float_type(memory.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    fill<T>(memory, convert<T>(std::numeric_limits<float>::quiet_NaN()));
  });
}

void fill_with_zeros(const MutableView& memory) {
  with_float_type(memory.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    fill<T>(memory, convert<T>(0.0F));
  });
}

}  // namespace losstape::detail
