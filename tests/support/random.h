// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "engine/dtype.h"

namespace losstape::testing {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  [[nodiscard]] std::uint64_t bits() { return engine_(); }
  // In [0, 1).
  [[nodiscard]] double uniform() { return static_cast<double>(engine_() >> 11U) * 0x1p-53; }
  [[nodiscard]] double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // In [0, count).
  [[nodiscard]] Index below(Index count) { return static_cast<Index>(engine_() % static_cast<std::uint64_t>(count)); }
  // In [low, high].
  [[nodiscard]] Index between(Index low, Index high) { return low + below(high - low + 1); }
  [[nodiscard]] bool chance(double probability) { return uniform() < probability; }
  [[nodiscard]] double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  // Of both signs and many sizes, exact in bf16.
  [[nodiscard]] double adjoint() {
    const double size = std::ldexp(static_cast<double>(between(64, 127)), static_cast<int>(between(-9, -5)));
    return chance(0.5) ? size : -size;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace losstape::testing
