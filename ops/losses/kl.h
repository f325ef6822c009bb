// SPDX-License-Identifier: Apache-2.0
// Estimators of KL(P_a ‖ P_b) from samples of a. Host and device; one copy for every loss.
#pragma once

#include <optional>

#include "engine/device.h"

namespace losstape {

// With r = log p_b − log p_a of the sampled token. Source: Schulman, "Approximating KL divergence", 2020.
enum class KlEstimator : unsigned char {
  k1,  // −r: unbiased; its gradient has expectation 0
  k2,  // r²/2: biased; its gradient is that of the KL
  k3,  // e^r − 1 − r: unbiased, never negative; its gradient is that of the other direction, KL(P_b ‖ P_a)
};

template <class T>
LOSSTAPE_HOST_DEVICE T kl_of_ratio(KlEstimator estimator, const T& r) {
  switch (estimator) {
    case KlEstimator::k1: return -r;
    case KlEstimator::k2: return r * r * 0.5;
    case KlEstimator::k3: return expm1(r) - r;
  }
  return r;
}

// Bounds on r before the estimator, and on the weighted estimate after it; unset: no bound.
struct KlClamps {
  bool bounds_input = true;
  double input = 20;
  bool bounds_output = true;
  double output = 10;
};

// weight · estimate of KL(a ‖ b), clamped. Where the input clamp changes r, weight and estimate are both stopped: the value
// stays, its gradient is 0. A clamp on the input comes before the exponential, so no value is capped that had already
// overflowed.
template <class T>
LOSSTAPE_HOST_DEVICE T calculate_kl(KlEstimator estimator, const T& a, const T& b, T weight, const KlClamps& clamps) {
  T r = b - a;
  if (clamps.bounds_input) {
    const bool clamped = r < T(-clamps.input) || r > T(clamps.input);
    r = clamp(r, -clamps.input, clamps.input);
    weight = select(clamped, stop_gradient(weight), weight);
  }
  const T kl = weight * kl_of_ratio(estimator, r);
  return clamps.bounds_output ? clamp(kl, -clamps.output, clamps.output) : kl;
}

}  // namespace losstape
