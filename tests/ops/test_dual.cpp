// SPDX-License-Identifier: Apache-2.0
// Dual numbers: every function's derivative against differences, the conventions at seams, and what stays 0; pairs.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/gradcheck.h"
#include "ops/dual.h"
#include "ops/token_map.h"
#include "tests/support/near.h"

namespace losstape::testing {
namespace {

using D = Dual<double, 2>;
using F = Dual<float, 2>;
using P = Paired<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

D var(double x, std::size_t i = 0) { return D::variable(x, i); }

// Fourth-order central difference of f's value.
template <class G>
double slope(const G& f, double x) {
  const double h = 1e-3 * std::max(0.05, std::abs(x));
  const auto at = [&](double y) { return f(D(y)).value; };
  return (8 * (at(x + h) - at(x - h)) - (at(x + 2 * h) - at(x - 2 * h))) / (12 * h);
}

template <class G>
void check_unary(const std::string& name, const G& f, const std::vector<double>& points, double bound = 1e-9) {
  for (const double x : points) {
    CAPTURE(name);
    CAPTURE(x);
    const D y = f(var(x));
    CHECK(std::abs(y.d[0] - slope(f, x)) <= bound * std::max(1.0, std::abs(y.d[0])));
    CHECK(y.d[1] == 0);
    CHECK(f(D(x)).d[0] == 0);
  }
}

}  // namespace

TEST_CASE("every function of duals has the derivative of its difference quotients") {
  const std::vector<double> any{-3.7, -1, -0.2, 0.3, 1, 2.5, 4};
  const std::vector<double> positive{0.05, 0.4, 1, 2, 9.5};
  check_unary(
      "minus", [](auto a) { return -a; }, any);
  check_unary(
      "exp", [](auto a) { return exp(a); }, any);
  check_unary(
      "expm1", [](auto a) { return expm1(a); }, any);
  check_unary(
      "log", [](auto a) { return log(a); }, positive, 1e-8);
  check_unary(
      "log1p", [](auto a) { return log1p(a); }, positive);
  check_unary(
      "sqrt", [](auto a) { return sqrt(a); }, positive, 1e-7);
  check_unary(
      "abs", [](auto a) { return abs(a); }, any);
  check_unary(
      "sigmoid", [](auto a) { return sigmoid(a); }, any);
  check_unary(
      "log_sigmoid", [](auto a) { return log_sigmoid(a); }, any);
  check_unary(
      "clamp", [](auto a) { return clamp(a, -1.5, 2.2); }, any);
  check_unary(
      "constants on both sides", [](auto a) { return (2.0 - a) * 3.0 / (a + 10.0) - a * 0.5; }, any);
  check_unary(
      "a of itself", [](auto a) { return a * a / (a * a + 1.0); }, any);
}

TEST_CASE("functions of two duals have both derivatives") {
  const D a = var(1.7, 0);
  const D b = var(-0.6, 1);
  const auto check = [](const D& y, double value, double da, double db) {
    CHECK(y.value == relative(value, 1e-14));
    CHECK(y.d[0] == doctest::Approx(da).epsilon(1e-14));
    CHECK(y.d[1] == doctest::Approx(db).epsilon(1e-14));
  };
  check(a + b, 1.1, 1, 1);
  check(a - b, 2.3, 1, -1);
  check(a * b, -1.02, -0.6, 1.7);
  check(a / b, 1.7 / -0.6, 1 / -0.6, -1.7 / 0.36);
  check(max(a, b), 1.7, 1, 0);
  check(min(a, b), -0.6, 0, 1);
  check(select(a > b, a, b), 1.7, 1, 0);
  check(select(a < b, a, b), -0.6, 0, 1);
}

TEST_CASE("log_sigmoid neither underflows nor overflows") {
  CHECK(log_sigmoid(var(-1000)).value == -1000);
  CHECK(log_sigmoid(var(-1000)).d[0] == 1);
  CHECK(log_sigmoid(var(1000)).value == 0);
  CHECK(log_sigmoid(var(1000)).d[0] == 0);
  CHECK(log_sigmoid(F::variable(-1000, 0)).value == -1000.0F);
  CHECK(log_sigmoid(var(0)).d[0] == 0.5);
  CHECK(sigmoid(var(-1000)).value == 0);
  CHECK(sigmoid(var(1000)).value == 1);
}

TEST_CASE("a tie of max and min splits the derivative evenly") {
  const D tie = max(var(2, 0), var(2, 1));
  CHECK(tie.d[0] == 0.5);
  CHECK(tie.d[1] == 0.5);
  const D least = min(var(2, 0), var(2, 1));
  CHECK(least.d[0] == 0.5);
  CHECK(least.d[1] == 0.5);
  CHECK(max(var(2), D(2)).d[0] == 0.5);
}

TEST_CASE("a clamp passes the derivative inside and at its bounds, and stops it outside") {
  CHECK(clamp(var(0.8), 0.8, 1.2).d[0] == 1);
  CHECK(clamp(var(1.2), 0.8, 1.2).d[0] == 1);
  CHECK(clamp(var(1.0), 0.8, 1.2).d[0] == 1);
  CHECK(clamp(var(std::nextafter(0.8, 0)), 0.8, 1.2).d[0] == 0);
  CHECK(clamp(var(std::nextafter(1.2, 2)), 0.8, 1.2).d[0] == 0);
  // The bound is that of the number's own type: 0.8 and 1.2 as fp32 have them.
  CHECK(clamp(F::variable(1.2F, 0), 0.8, 1.2).d[0] == 1);
  CHECK(clamp(F::variable(0.8F, 0), 0.8, 1.2).d[0] == 1);
}

TEST_CASE("|x| has derivative 0 at 0") {
  CHECK(abs(var(0)).d[0] == 0);
  CHECK(abs(var(-0.0)).d[0] == 0);
}

TEST_CASE("a stopped or clamped value stays without derivative, whatever it is multiplied with") {
  CHECK(stop_gradient(exp(var(2))).value == std::exp(2.0));
  CHECK(stop_gradient(exp(var(2))).d[0] == 0);
  CHECK((stop_gradient(var(1)) * D(kInf)).d[0] == 0);
  CHECK((stop_gradient(var(1)) * D(kNan)).d[0] == 0);
  CHECK(clamp(exp(var(1000)), 0, 10).value == 10);
  CHECK(clamp(exp(var(1000)), 0, 10).d[0] == 0);
  CHECK((clamp(exp(var(1000)), 0, 10) / D(0.0)).d[0] == 0);
  CHECK(exp(D(1000) + stop_gradient(var(1))).d[0] == 0);
}

TEST_CASE("a NaN reaches the result of max, min and clamp from either side") {
  CHECK(std::isnan(max(var(kNan), var(1, 1)).value));
  CHECK(std::isnan(max(var(1), var(kNan, 1)).value));
  CHECK(std::isnan(min(var(kNan), var(1, 1)).value));
  CHECK(std::isnan(min(var(1), var(kNan, 1)).value));
  CHECK(std::isnan(clamp(var(kNan), 0, 1).value));
  CHECK_FALSE(is_finite(var(kNan)));
  CHECK_FALSE(is_finite(var(-kInf)));
  CHECK(is_finite(var(1e300)));
}

TEST_CASE("pairs take selections and stopped values from the base") {
  const P a(1.1, 1.0, false);
  const P b(2.2, 2.0, false);
  CHECK(stop_gradient(a).value == 1.0);
  CHECK(stop_gradient(a).base == 1.0);
  CHECK((a * b).value == doctest::Approx(2.42));
  CHECK((a * b).base == 2.0);
  // The comparison looks at the base: 1.0 < 1.05, though the probe is above.
  CHECK(select(a < P(1.05), P(7), P(8)).value == 7);
  CHECK(exp(a).value == std::exp(1.1));
  CHECK(exp(a).base == std::exp(1.0));
}

TEST_CASE("a probe that crosses a seam is marked, one that does not is not") {
  const P below(0.9, 1.1, false);
  const P above(1.2, 1.1, false);
  CHECK(max(below, P(1)).kink);
  CHECK_FALSE(max(above, P(1)).kink);
  CHECK(min(below, P(1)).kink);
  CHECK_FALSE(min(above, P(1)).kink);
  CHECK(clamp(below, 1, 2).kink);
  CHECK_FALSE(clamp(above, 1, 2).kink);
  CHECK(abs(P(-0.1, 0.1, false)).kink);
  CHECK_FALSE(abs(P(0.2, 0.1, false)).kink);
  CHECK((max(below, P(1)) + P(3)).kink);
  CHECK_FALSE(stop_gradient(max(below, P(1))).kink);  // nothing moves there
}

TEST_CASE("a probe across a functor's seam is skipped and counted, and the others are checked") {
  // The second and fourth entries stand closer to the seam than a step.
  const std::vector<double> x{0.3, 1 + 1e-7, 2.5, 1 - 1e-7, -4};
  GradcheckOptions options;
  options.most_kinks = 0.5;
  const auto f = [](auto& /*tape*/, auto v) { return token_map([](auto a) { return clamp(a, -2, 1) + a * a; }, v); };
  const GradcheckReport report = gradcheck(f, x, options);
  CHECK_MESSAGE(report, report.summary());
  CHECK(report.skipped_kinks == 2);
  CHECK(report.checked == 3);
}

TEST_CASE("pairs have the values of duals") {
  for (const double x : {-2.5, -0.5, 0.25, 3.0}) {
    const auto f = [](const auto& a) {
      return exp(a) + expm1(a) * log1p(abs(a)) - sigmoid(a) / log_sigmoid(a) + sqrt(abs(a)) + log(abs(a)) + max(a, a * 2.0) -
             min(a, -a) + clamp(a, -1, 1);
    };
    CAPTURE(x);
    CHECK(f(P(x, x, false)).value == relative(f(var(x)).value, 1e-15));
    CHECK(f(P(x, x, false)).base == relative(f(var(x)).value, 1e-15));
    CHECK_FALSE(f(P(x, x, false)).kink);
  }
}

}  // namespace losstape::testing
