// SPDX-License-Identifier: Apache-2.0
// The KL estimators: values, slopes, clamps and weights by their definitions.
#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "ops/dual.h"
#include "ops/losses/kl.h"
#include "tests/support/near.h"

namespace losstape::testing {
namespace {

using D = Dual<double, 1>;
using F = Dual<float, 1>;

constexpr KlClamps kUnclamped{.bounds_input = false, .bounds_output = false};

// KL(a ‖ b) with a differentiated, and the weight that carries the gradient of the sampling or not.
D estimate(KlEstimator estimator, double a, double b, const KlClamps& clamps, bool score = false) {
  const D at = D::variable(a, 0);
  return calculate_kl(estimator, at, D(b), score ? exp(at - stop_gradient(at)) : D(1), clamps);
}

}  // namespace

TEST_CASE("k1, k2 and k3 have their values and slopes") {
  // r = b − a = −1.
  const auto check = [](KlEstimator estimator, double value, double slope) {
    const D kl = estimate(estimator, -1, -2, kUnclamped);
    CHECK(kl.value == relative(value, 1e-12));
    CHECK(kl.d[0] == relative(slope, 1e-12));
  };
  check(KlEstimator::k1, 1, 1);
  check(KlEstimator::k2, 0.5, 1);
  check(KlEstimator::k3, std::exp(-1.0), 1 - std::exp(-1.0));
}

TEST_CASE("k2 and k3 are never negative, and keep their precision near 0") {
  for (const double r : {-30.0, -1.0, -1e-6, 1e-6, 0.5, 20.0}) {
    CHECK(kl_of_ratio(KlEstimator::k2, D(r)).value >= 0);
    CHECK(kl_of_ratio(KlEstimator::k3, D(r)).value >= 0);
  }
  CHECK(kl_of_ratio(KlEstimator::k3, D(1e-3)).value == relative(5.0016670834e-7, 1e-9));
  CHECK(kl_of_ratio(KlEstimator::k3, F(1e-2)).value == relative(5.0167e-5, 2e-4));
}

TEST_CASE("the input clamp stops estimate and weight where it changes the ratio, and nothing where it does not") {
  const KlClamps clamps{.input = 1.5, .bounds_output = false};
  for (const KlEstimator estimator : {KlEstimator::k1, KlEstimator::k2, KlEstimator::k3}) {
    const D beyond = estimate(estimator, 0, 5, clamps, true);
    CHECK(beyond.value == doctest::Approx(kl_of_ratio(estimator, D(1.5)).value));
    CHECK(beyond.d[0] == 0);
    const D below = estimate(estimator, 0, -5, clamps, true);
    CHECK(below.value == doctest::Approx(kl_of_ratio(estimator, D(-1.5)).value));
    CHECK(below.d[0] == 0);
    const D at_bound = estimate(estimator, 0, 1.5, clamps, true);
    CHECK(at_bound.d[0] == doctest::Approx(estimate(estimator, 0, 1.5, kUnclamped, true).d[0]));
    CHECK(at_bound.d[0] != 0);
  }
}

TEST_CASE("the output clamp bounds the weighted estimate, with gradient 0 beyond") {
  const KlClamps clamps{.bounds_input = false, .output = 3};
  const D beyond = estimate(KlEstimator::k3, -200, 0, clamps);
  CHECK(beyond.value == 3);
  CHECK(beyond.d[0] == 0);
  const D negative = estimate(KlEstimator::k1, -9, 0, clamps);
  CHECK(negative.value == -3);
  CHECK(negative.d[0] == 0);
  // In fp32 the exponential overflows before the clamp: capped all the same, and without a NaN behind it.
  const F at = F::variable(-200, 0);
  const F capped = calculate_kl(KlEstimator::k3, at, F(0), exp(at - stop_gradient(at)), clamps);
  CHECK(capped.value == 3);
  CHECK(capped.d[0] == 0);
}

TEST_CASE("the score-function weight adds the estimate's own value to the slope") {
  for (const KlEstimator estimator : {KlEstimator::k1, KlEstimator::k2, KlEstimator::k3}) {
    const D plain = estimate(estimator, -1, -1.4, kUnclamped);
    const D score = estimate(estimator, -1, -1.4, kUnclamped, true);
    CHECK(score.value == plain.value);
    CHECK(score.d[0] == doctest::Approx(plain.d[0] + plain.value));
  }
}

TEST_CASE("the estimators' expected gradients are those that the documentation names") {  // B55
  // Two tokens, policy π and reference q; the exact expectation over both tokens of d/dz of the first logit.
  const std::array<double, 2> pi{0.75, 0.25};
  const std::array<double, 2> q{0.5, 0.5};
  const auto expected = [&](KlEstimator estimator, bool score) {
    double sum = 0;
    for (std::size_t y = 0; y < 2; ++y) {
      const double slope = estimate(estimator, std::log(pi[y]), std::log(q[y]), kUnclamped, score).d[0];
      sum += pi[y] * slope * ((y == 0 ? 1 : 0) - pi[0]);
    }
    return sum;
  };
  const double reverse = 0.75 * 0.25 * (std::log(0.75 / 0.5) - std::log(0.25 / 0.5));
  CHECK(reverse == relative(0.205990, 1e-5));
  CHECK(expected(KlEstimator::k1, false) == doctest::Approx(0).epsilon(1e-12));
  CHECK(expected(KlEstimator::k2, false) == relative(0.205990, 1e-5));
  CHECK(expected(KlEstimator::k3, false) == relative(0.25, 1e-12));
  // With the weight the unbiased estimators have the KL's own gradient.
  CHECK(expected(KlEstimator::k1, true) == relative(reverse, 1e-12));
  CHECK(expected(KlEstimator::k3, true) == relative(reverse, 1e-12));
}

}  // namespace losstape::testing
