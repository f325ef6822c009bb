// SPDX-License-Identifier: Apache-2.0
// The numbers that a loss functor computes with: dual numbers, and the pairs on which a gradcheck probes. Host and device.
//
// A functor is written once, with `auto`, for both:  [](auto logp, auto old) { return exp(logp - old); }
// Conventions at the seams are PyTorch's: a tie of min and max splits the derivative evenly, a clamp passes it inside and at
// its bounds, |x| has derivative 0 at 0. A derivative that is exactly 0 stays 0 whatever it is multiplied with: what was
// stopped or clamped away cannot come back as 0 · ∞.
#pragma once

#include <cmath>
#include <cstddef>

#include "engine/device.h"

namespace losstape {

// A value and its derivatives with respect to the N columns that the functor was given.
template <class R, std::size_t N>
struct Dual {
  R value{};
  R d[N]{};  // NOLINT(modernize-avoid-c-arrays): std::array's members are no device functions

  Dual() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): constants mix with duals
  LOSSTAPE_HOST_DEVICE Dual(double constant) : value(static_cast<R>(constant)) {}

  // Column i's own dual.
  LOSSTAPE_HOST_DEVICE static Dual variable(R x, std::size_t i) {
    Dual v;
    v.value = x;
    v.d[i] = 1;
    return v;
  }
  // f(a) with derivative slope · a′, and f(a, b) likewise.
  LOSSTAPE_HOST_DEVICE static Dual chain(R f, R slope, const Dual& a) {
    Dual y;
    y.value = f;
    for (std::size_t i = 0; i < N; ++i) y.d[i] = scaled(slope, a.d[i]);
    return y;
  }
  LOSSTAPE_HOST_DEVICE static Dual chain(R f, R slope_a, const Dual& a, R slope_b, const Dual& b) {
    Dual y;
    y.value = f;
    for (std::size_t i = 0; i < N; ++i) y.d[i] = scaled(slope_a, a.d[i]) + scaled(slope_b, b.d[i]);
    return y;
  }

  friend LOSSTAPE_HOST_DEVICE Dual operator-(const Dual& a) { return chain(-a.value, -1, a); }
  friend LOSSTAPE_HOST_DEVICE Dual operator+(const Dual& a, const Dual& b) { return chain(a.value + b.value, 1, a, 1, b); }
  friend LOSSTAPE_HOST_DEVICE Dual operator-(const Dual& a, const Dual& b) { return chain(a.value - b.value, 1, a, -1, b); }
  friend LOSSTAPE_HOST_DEVICE Dual operator*(const Dual& a, const Dual& b) {
    return chain(a.value * b.value, b.value, a, a.value, b);
  }
  friend LOSSTAPE_HOST_DEVICE Dual operator/(const Dual& a, const Dual& b) {
    const R f = a.value / b.value;
    return chain(f, 1 / b.value, a, -f / b.value, b);
  }
  friend LOSSTAPE_HOST_DEVICE bool operator<(const Dual& a, const Dual& b) { return a.value < b.value; }
  friend LOSSTAPE_HOST_DEVICE bool operator>(const Dual& a, const Dual& b) { return a.value > b.value; }
  friend LOSSTAPE_HOST_DEVICE bool operator<=(const Dual& a, const Dual& b) { return a.value <= b.value; }
  friend LOSSTAPE_HOST_DEVICE bool operator>=(const Dual& a, const Dual& b) { return a.value >= b.value; }

  friend LOSSTAPE_HOST_DEVICE Dual exp(const Dual& a) {
    const R f = std::exp(a.value);
    return chain(f, f, a);
  }
  friend LOSSTAPE_HOST_DEVICE Dual expm1(const Dual& a) { return chain(std::expm1(a.value), std::exp(a.value), a); }
  friend LOSSTAPE_HOST_DEVICE Dual log(const Dual& a) { return chain(std::log(a.value), 1 / a.value, a); }
  friend LOSSTAPE_HOST_DEVICE Dual log1p(const Dual& a) { return chain(std::log1p(a.value), 1 / (1 + a.value), a); }
  friend LOSSTAPE_HOST_DEVICE Dual sqrt(const Dual& a) {
    const R f = std::sqrt(a.value);
    return chain(f, R(0.5) / f, a);
  }
  friend LOSSTAPE_HOST_DEVICE Dual abs(const Dual& a) {
    return chain(std::abs(a.value), a.value > 0 ? R(1) : a.value < 0 ? R(-1) : R(0), a);
  }
  friend LOSSTAPE_HOST_DEVICE Dual sigmoid(const Dual& a) {
    const R e = std::exp(-std::abs(a.value));
    const R f = a.value >= 0 ? 1 / (1 + e) : e / (1 + e);
    return chain(f, e / ((1 + e) * (1 + e)), a);
  }
  // log σ(a) = min(a, 0) − log1p(e^−|a|): no underflow on either side.
  friend LOSSTAPE_HOST_DEVICE Dual log_sigmoid(const Dual& a) {
    const R e = std::exp(-std::abs(a.value));
    return chain((a.value < 0 ? a.value : R(0)) - std::log1p(e), a.value >= 0 ? e / (1 + e) : 1 / (1 + e), a);
  }
  friend LOSSTAPE_HOST_DEVICE Dual max(const Dual& a, const Dual& b) {
    if (a.value == b.value) return chain(a.value, R(0.5), a, R(0.5), b);
    return a.value > b.value || a.value != a.value ? a : b;  // a NaN on either side wins
  }
  friend LOSSTAPE_HOST_DEVICE Dual min(const Dual& a, const Dual& b) {
    if (a.value == b.value) return chain(a.value, R(0.5), a, R(0.5), b);
    return a.value < b.value || a.value != a.value ? a : b;
  }
  friend LOSSTAPE_HOST_DEVICE Dual clamp(const Dual& a, double low, double high) {
    if (a.value < static_cast<R>(low)) return Dual(low);
    if (a.value > static_cast<R>(high)) return Dual(high);
    return a;
  }
  // The value without its derivative.
  friend LOSSTAPE_HOST_DEVICE Dual stop_gradient(const Dual& a) {
    Dual y;
    y.value = a.value;
    return y;
  }
  friend LOSSTAPE_HOST_DEVICE Dual select(bool condition, const Dual& a, const Dual& b) { return condition ? a : b; }
  friend LOSSTAPE_HOST_DEVICE bool is_finite(const Dual& a) { return std::isfinite(a.value); }

 private:
  LOSSTAPE_HOST_DEVICE static R scaled(R slope, R derivative) { return derivative == 0 ? R(0) : slope * derivative; }
};

// A value at a probe and the value at the point that is probed around. Comparisons, and with them every selection, look at
// the base; stop_gradient takes the base for the value: what a loss freezes stays frozen in its difference quotient. `kink`
// is set where value and base stand on two sides of a min, max, clamp or |x|.
template <class R>
struct Paired {
  R value{};
  R base{};
  bool kink = false;

  Paired() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): constants mix with pairs
  LOSSTAPE_HOST_DEVICE Paired(double constant) : value(static_cast<R>(constant)), base(static_cast<R>(constant)) {}
  LOSSTAPE_HOST_DEVICE Paired(R at_probe, R at_base, bool crossed) : value(at_probe), base(at_base), kink(crossed) {}

  friend LOSSTAPE_HOST_DEVICE Paired operator-(const Paired& a) { return {-a.value, -a.base, a.kink}; }
  friend LOSSTAPE_HOST_DEVICE Paired operator+(const Paired& a, const Paired& b) {
    return {a.value + b.value, a.base + b.base, a.kink || b.kink};
  }
  friend LOSSTAPE_HOST_DEVICE Paired operator-(const Paired& a, const Paired& b) {
    return {a.value - b.value, a.base - b.base, a.kink || b.kink};
  }
  friend LOSSTAPE_HOST_DEVICE Paired operator*(const Paired& a, const Paired& b) {
    return {a.value * b.value, a.base * b.base, a.kink || b.kink};
  }
  friend LOSSTAPE_HOST_DEVICE Paired operator/(const Paired& a, const Paired& b) {
    return {a.value / b.value, a.base / b.base, a.kink || b.kink};
  }
  friend LOSSTAPE_HOST_DEVICE bool operator<(const Paired& a, const Paired& b) { return a.base < b.base; }
  friend LOSSTAPE_HOST_DEVICE bool operator>(const Paired& a, const Paired& b) { return a.base > b.base; }
  friend LOSSTAPE_HOST_DEVICE bool operator<=(const Paired& a, const Paired& b) { return a.base <= b.base; }
  friend LOSSTAPE_HOST_DEVICE bool operator>=(const Paired& a, const Paired& b) { return a.base >= b.base; }

  friend LOSSTAPE_HOST_DEVICE Paired exp(const Paired& a) { return {std::exp(a.value), std::exp(a.base), a.kink}; }
  friend LOSSTAPE_HOST_DEVICE Paired expm1(const Paired& a) { return {std::expm1(a.value), std::expm1(a.base), a.kink}; }
  friend LOSSTAPE_HOST_DEVICE Paired log(const Paired& a) { return {std::log(a.value), std::log(a.base), a.kink}; }
  friend LOSSTAPE_HOST_DEVICE Paired log1p(const Paired& a) { return {std::log1p(a.value), std::log1p(a.base), a.kink}; }
  friend LOSSTAPE_HOST_DEVICE Paired sqrt(const Paired& a) { return {std::sqrt(a.value), std::sqrt(a.base), a.kink}; }
  friend LOSSTAPE_HOST_DEVICE Paired abs(const Paired& a) {
    return {std::abs(a.value), std::abs(a.base), a.kink || side(a.value, 0) != side(a.base, 0)};
  }
  friend LOSSTAPE_HOST_DEVICE Paired sigmoid(const Paired& a) { return {logistic(a.value), logistic(a.base), a.kink}; }
  friend LOSSTAPE_HOST_DEVICE Paired log_sigmoid(const Paired& a) {
    return {log_logistic(a.value), log_logistic(a.base), a.kink};
  }
  friend LOSSTAPE_HOST_DEVICE Paired max(const Paired& a, const Paired& b) {
    return {a.value > b.value || a.value != a.value ? a.value : b.value,
            a.base > b.base || a.base != a.base ? a.base : b.base,
            a.kink || b.kink || side(a.value, b.value) != side(a.base, b.base)};
  }
  friend LOSSTAPE_HOST_DEVICE Paired min(const Paired& a, const Paired& b) { return -max(-a, -b); }
  friend LOSSTAPE_HOST_DEVICE Paired clamp(const Paired& a, double low, double high) {
    return {clamped(a.value, low, high), clamped(a.base, low, high),
            a.kink || zone(a.value, low, high) != zone(a.base, low, high)};
  }
  friend LOSSTAPE_HOST_DEVICE Paired stop_gradient(const Paired& a) { return {a.base, a.base, false}; }
  friend LOSSTAPE_HOST_DEVICE Paired select(bool condition, const Paired& a, const Paired& b) { return condition ? a : b; }
  friend LOSSTAPE_HOST_DEVICE bool is_finite(const Paired& a) { return std::isfinite(a.base); }

 private:
  LOSSTAPE_HOST_DEVICE static int side(R a, R b) { return a > b ? 1 : a < b ? -1 : 0; }
  LOSSTAPE_HOST_DEVICE static int zone(R a, double low, double high) {
    return a < static_cast<R>(low) ? -1 : a > static_cast<R>(high) ? 1 : 0;
  }
  LOSSTAPE_HOST_DEVICE static R clamped(R a, double low, double high) {
    return a < static_cast<R>(low) ? static_cast<R>(low) : a > static_cast<R>(high) ? static_cast<R>(high) : a;
  }
  LOSSTAPE_HOST_DEVICE static R logistic(R a) {
    const R e = std::exp(-std::abs(a));
    return a >= 0 ? 1 / (1 + e) : e / (1 + e);
  }
  LOSSTAPE_HOST_DEVICE static R log_logistic(R a) { return (a < 0 ? a : R(0)) - std::log1p(std::exp(-std::abs(a))); }
};

}  // namespace losstape
