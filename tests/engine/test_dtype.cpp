// SPDX-License-Identifier: Apache-2.0
// Conversions against an oracle that knows only what the bits of a format mean, in double arithmetic.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "engine/dtype.h"

using namespace losstape;

namespace {

struct Format {
  int exponent_bits;
  int fraction_bits;
};
constexpr Format kBFloat16{8, 7};
constexpr Format kFloat16{5, 10};

// The value of a pattern: sign · 2^(exponent − bias) · 1.fraction, subnormals without the 1.
double meaning(std::uint32_t bits, Format format) {
  const int fraction_size = 1 << format.fraction_bits;
  const auto fraction = static_cast<int>(bits) % fraction_size;
  const auto exponent = static_cast<int>(bits >> format.fraction_bits) % (1 << format.exponent_bits);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - format.fraction_bits);
  return sign * std::ldexp(fraction_size + fraction, exponent - bias - format.fraction_bits);
}

// Rounds to nearest even by looking for the neighbours among all values of the format.
class Oracle {
 public:
  explicit Oracle(Format format) : infinity_(((1U << format.exponent_bits) - 1) << format.fraction_bits) {
    for (std::uint32_t bits = 0; bits < infinity_; ++bits) values_.push_back(meaning(bits, format));
    // What would come next, had the format one exponent more: from half way there on, numbers round to infinity.
    values_.push_back(std::ldexp(1.0, (1 << (format.exponent_bits - 1))));
  }

  [[nodiscard]] std::uint16_t round(double x) const {
    const std::uint32_t sign = std::signbit(x) ? 0x8000U : 0U;
    const double size = std::abs(x);
    if (size >= values_.back()) return static_cast<std::uint16_t>(sign | infinity_);
    const auto above = std::upper_bound(values_.begin(), values_.end(), size);
    const auto low = static_cast<std::uint32_t>(above - values_.begin()) - 1;
    const double down = size - values_[low];
    const double up = values_[low + 1] - size;
    const bool to_low = down < up || (down == up && low % 2 == 0);
    return static_cast<std::uint16_t>(sign | (to_low ? low : low + 1));
  }
  [[nodiscard]] const std::vector<double>& values() const { return values_; }

 private:
  std::uint32_t infinity_;
  std::vector<double> values_;  // of the patterns 0, 1, … in order
};

template <class T>
T from_bits(std::uint32_t bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

template <class T>
void check_every_pattern(Format format) {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const double expected = meaning(bits, format);
    const T value = from_bits<T>(bits);
    const auto widened = static_cast<float>(value);
    const T back(widened);
    if (std::isnan(expected)) {
      wrong += std::isnan(widened) && std::isnan(static_cast<float>(back)) ? 0 : 1;
      continue;
    }
    const bool same_value = static_cast<double>(widened) == expected && std::signbit(widened) == std::signbit(expected);
    wrong += same_value && back.bits == bits && convert<double>(value) == expected ? 0 : 1;
  }
  CHECK(wrong == 0);
}

template <class T, class From>
int wrongly_rounded(const Oracle& oracle, From x) {
  return convert<T>(x).bits == oracle.round(static_cast<double>(x)) ? 0 : 1;
}

// Every value, every middle between neighbours, and what lies next to both, of both signs.
template <class T, class From>
void check_seams(Format format) {
  const Oracle oracle(format);
  const From infinity = std::numeric_limits<From>::infinity();
  int wrong = 0;
  for (std::size_t i = 0; i + 1 < oracle.values().size(); ++i) {
    const double low = oracle.values()[i];
    for (const double at : {low, (low + oracle.values()[i + 1]) / 2}) {
      const auto x = static_cast<From>(at);
      REQUIRE(static_cast<double>(x) == at);
      for (const From near : {std::nextafter(x, -infinity), x, std::nextafter(x, infinity)}) {
        wrong += wrongly_rounded<T>(oracle, near) + wrongly_rounded<T>(oracle, -near);
      }
    }
  }
  CHECK(wrong == 0);
}

template <class T>
void check_random_floats(Format format) {
  const Oracle oracle(format);
  std::mt19937 random(7);
  int wrong = 0;
  for (int i = 0; i < 400'000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(x)) wrong += wrongly_rounded<T>(oracle, x);
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_SUITE("engine/dtype") {
  TEST_CASE("every bfloat16 widens to the number that its bits mean, and back to the same bits") {
    check_every_pattern<BFloat16>(kBFloat16);
  }
  TEST_CASE("every binary16 widens to the number that its bits mean, and back to the same bits") {
    check_every_pattern<Float16>(kFloat16);
  }
  TEST_CASE("bfloat16 rounds to nearest even at every value, every tie and beside both, subnormals and overflow too") {
    check_seams<BFloat16, float>(kBFloat16);
    check_random_floats<BFloat16>(kBFloat16);
  }
  TEST_CASE("binary16 rounds to nearest even at every value, every tie and beside both, subnormals and overflow too") {
    check_seams<Float16, float>(kFloat16);
    check_random_floats<Float16>(kFloat16);
  }
  TEST_CASE("a double narrows to 16 bits in one rounding: a number just beside a tie does not become the tie") {
    check_seams<BFloat16, double>(kBFloat16);
    check_seams<Float16, double>(kFloat16);
    CHECK(convert<BFloat16>(1.0 + 0x1p-8 + 0x1p-40).bits == 0x3f81);  // in fp32 it is the tie 1 + 2^-8, which rounds down
    CHECK(convert<BFloat16>(1.0 + 0x1p-8).bits == 0x3f80);
    CHECK(convert<Float16>(1e300).bits == 0x7c00);
    CHECK(convert<BFloat16>(-1e300).bits == 0xff80);
    CHECK(convert<BFloat16>(-1e-300).bits == 0x8000);
    CHECK(std::isnan(convert<double>(convert<Float16>(std::numeric_limits<double>::quiet_NaN()))));
  }
  TEST_CASE("the largest numbers keep, and half a unit more is infinity") {
    CHECK(Float16(65504.0F).bits == 0x7bff);
    CHECK(Float16(std::nextafter(65520.0F, 0.0F)).bits == 0x7bff);
    CHECK(Float16(65520.0F).bits == 0x7c00);
    CHECK(Float16(-65520.0F).bits == 0xfc00);
    CHECK(BFloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
    CHECK(BFloat16(-std::numeric_limits<float>::infinity()).bits == 0xff80);
  }
  TEST_CASE("a NaN of any payload stays NaN, also where its upper bits alone would be infinity") {
    const auto tail = std::bit_cast<float>(0x7f800001U);
    CHECK(std::isnan(static_cast<float>(BFloat16(tail))));
    CHECK(std::isnan(static_cast<float>(Float16(tail))));
    CHECK(std::isnan(static_cast<float>(BFloat16(-tail))));
  }
  TEST_CASE("a dtype is known by name, by size and by the width of a type") {
    CHECK(size_of(DType::f64) == 8);
    CHECK(size_of(bf16) == 2);
    CHECK(size_of(u8) == 1);
    CHECK(std::string(name(f16)) == "f16");
    CHECK(dtype_of<long long> == DType::i64);
    CHECK(dtype_of<int> == DType::i32);
    CHECK(is_float(bf16));
    CHECK_FALSE(is_float(u8));
    CHECK_FALSE(Element<unsigned>);
    CHECK_FALSE(Element<short>);
    CHECK_FALSE(Element<long double>);
  }
  TEST_CASE("a float dtype calls back with its tag, an integer one does not") {
    int calls = 0;
    with_float_type(DType::bf16,
                    [&](auto type) { calls += std::is_same_v<typename decltype(type)::type, BFloat16> ? 1 : 100; });
    with_float_type(DType::i32, [&](auto) { calls += 100; });
    CHECK(calls == 1);
  }
}
