// SPDX-License-Identifier: Apache-2.0
// Element types: the two 16-bit floats with their conversions, the runtime tag of a type, and typed tags (f64, f32, …).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/device.h"

namespace losstape {

using Index = std::int64_t;  // every size, offset and row number

// bfloat16: the upper half of an fp32. Rounds to nearest even; NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  LOSSTAPE_HOST_DEVICE explicit BFloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const bool nan = (word & 0x7fffffffU) > 0x7f800000U;
    bits = nan ? static_cast<std::uint16_t>((word >> 16U) | 0x40U)
               : static_cast<std::uint16_t>((word + 0x7fffU + ((word >> 16U) & 1U)) >> 16U);
  }
  LOSSTAPE_HOST_DEVICE explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }
};

// IEEE binary16. Rounds to nearest even, with subnormals; overflow gives infinity; NaN stays NaN.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  LOSSTAPE_HOST_DEVICE explicit Float16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((word >> 16U) & 0x8000U);
    const std::uint32_t magnitude = word & 0x7fffffffU;
    if (magnitude > 0x7f800000U) {
      bits = static_cast<std::uint16_t>(sign | 0x7e00U);
    } else if (magnitude >= 0x477ff000U) {  // 65520 and above round to infinity
      bits = static_cast<std::uint16_t>(sign | 0x7c00U);
    } else if (magnitude < 0x38800000U) {  // below 2^-14: a subnormal is a multiple of 2^-24
      // Adding 0.5 leaves the fraction's last bit worth 2^-24: the addition itself rounds to nearest even.
      const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
      bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
    } else {
      const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13U) & 1U);
      bits = static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13U));
    }
  }
  LOSSTAPE_HOST_DEVICE explicit operator float() const {
    const std::uint32_t sign = (bits & 0x8000U) * 0x10000U;
    const std::uint32_t magnitude = bits & 0x7fffU;
    if (magnitude >= 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13U));
    if (magnitude >= 0x400U) return std::bit_cast<float>(sign | ((magnitude << 13U) + 0x38000000U));
    const float small = static_cast<float>(magnitude) * 0x1p-24F;
    return sign != 0 ? -small : small;
  }
};

enum class DType : unsigned char { f64, f32, bf16, f16, i64, i32, u8 };

[[nodiscard]] constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

[[nodiscard]] constexpr const char* name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
  }
  return "?";
}

[[nodiscard]] constexpr bool is_float(DType dtype) { return dtype <= DType::f16; }

namespace detail {
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, BFloat16>) return DType::bf16;
  if constexpr (std::is_same_v<T, Float16>) return DType::f16;
  // `long` and `long long` are distinct types of one size: a type is known by its width.
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 8) return DType::i64;
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 4) return DType::i32;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::u8;
}
}  // namespace detail

template <class T>
concept Element = std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, BFloat16> ||
    std::is_same_v<T, Float16> || std::is_same_v<T, std::uint8_t> ||
    (std::is_integral_v<T>&& std::is_signed_v<T> && (sizeof(T) == 8 || sizeof(T) == 4));

template <Element T>
inline constexpr DType dtype_of = detail::dtype_of<T>();

// A type as a value, so that generic code asks for memory without writing `template`: c.save(of<Slot>, rows).
template <class T>
struct Of {
  using type = T;
};
template <class T>
inline constexpr Of<T> of{};

// The same for element types, which are dtypes too: c.save(f64, rows, 2).
template <Element T>
struct Type : Of<T> {
  // NOLINTNEXTLINE(google-explicit-constructor): a tag stands for its dtype wherever one is wanted
  constexpr operator DType() const { return dtype_of<T>; }
};

inline constexpr Type<double> f64{};
inline constexpr Type<float> f32{};
inline constexpr Type<BFloat16> bf16{};
inline constexpr Type<Float16> f16{};
inline constexpr Type<std::int64_t> i64{};
inline constexpr Type<std::int32_t> i32{};
inline constexpr Type<std::uint8_t> u8{};

// Calls f with the Type tag of a float dtype; f is not called for an integer one.
template <class F>
void with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: f(f64); break;
    case DType::f32: f(f32); break;
    case DType::bf16: f(bf16); break;
    case DType::f16: f(f16); break;
    default: break;
  }
}

namespace detail {
// A double as the fp32 from which rounding to 16 bits gives what rounding the double itself would: where it lies between two
// fp32, the one with an odd last bit, which is never a tie of the narrower type.
LOSSTAPE_HOST_DEVICE inline float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  const auto back = static_cast<double>(nearest);
  if (back == value || value != value) return nearest;
  auto word = std::bit_cast<std::uint32_t>(nearest);
  if (value < 0 ? back < value : back > value) --word;  // toward zero
  return std::bit_cast<float>(word | 1U);
}
}  // namespace detail

// Widens or narrows between element types, rounding once, to nearest even.
template <class To, class From>
LOSSTAPE_HOST_DEVICE constexpr To convert(From value) {
  constexpr bool half_from = std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>;
  constexpr bool half_to = std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>;
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (half_from) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (half_to && std::is_same_v<From, double>) {
    return To(detail::round_to_odd(value));
  } else if constexpr (half_to) {
    return To(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace losstape
