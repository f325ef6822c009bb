// SPDX-License-Identifier: Apache-2.0
// The checker, checked: it must pass what is right and fail every kind of wrong.
#include "engine/gradcheck.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "distributed/threads.h"
#include "ops/token_map.h"
#include "tests/engine/nodes.h"
#include "tests/support/refusal.h"

using namespace losstape;
using namespace losstape::testing;

namespace {

enum class Fault {
  none,
  sign,
  scale,             // by 1 + 1e-5
  one_entry,         // row 2, column 1 by a thousandth
  missing_term,      // of x³ + x, the derivative of x³ alone
  uniform_upstream,  // the first element's for all
  one_row_nan,
  zero,
  bf16_in_fp32,  // the fp32 tape rounds to bf16 on the way
  nan_in_fp32,   // the fp32 tape's first entry
};

// y = x³ + x element by element, its derivative spoilt.
struct Cubic {
  static constexpr auto name = "cubic";
  Fault fault = Fault::none;

  void forward(auto& c) const {
    const auto x = c.in(0);
    for (Index r = 0; r < x.rows(); ++r) {
      for (Index j = 0; j < x.cols(); ++j) {
        const double at = x(r, j);
        c.out(0).write(r, j, at * at * at + at);
      }
    }
  }
  void backward(auto& c) const {
    constexpr bool fp32 = std::is_same_v<real_of<decltype(c)>, float>;
    const auto x = c.in(0);
    const auto dy = c.dout(0);
    for (Index r = 0; r < x.rows(); ++r) {
      for (Index j = 0; j < x.cols(); ++j) {
        const double at = x(r, j);
        const double g = fault == Fault::uniform_upstream ? dy(0, 0) : dy(r, j);
        double slope = 3 * at * at + (fault == Fault::missing_term ? 0 : 1);
        if (fault == Fault::sign) slope = -slope;
        if (fault == Fault::scale) slope *= 1 + 1e-5;
        if (fault == Fault::one_entry && r == 2 && j == 1) slope *= 1.001;
        if (fault == Fault::one_row_nan && r == 0) slope = std::numeric_limits<double>::quiet_NaN();
        if (fault == Fault::zero) slope = 0;
        if (fp32 && fault == Fault::bf16_in_fp32) slope = convert<double>(convert<BFloat16>(slope));
        if (fp32 && fault == Fault::nan_in_fp32 && r == 0 && j == 0) slope = std::numeric_limits<double>::quiet_NaN();
        c.grad(0).write(r, j, g * slope);
      }
    }
  }
};

// Σ x² as a scalar: its backward may forget the adjoint, or store where it should add.
enum class ScalarFault { none, forgets_adjoint, stores };
struct SumOfSquares {
  static constexpr auto name = "sum_of_squares";
  ScalarFault fault = ScalarFault::none;
  void forward(auto& c) const {
    double sum = 0;
    for (Index r = 0; r < c.in(0).rows(); ++r) sum += double(c.in(0)(r)) * double(c.in(0)(r));
    c.out(0).write(0, sum);
  }
  void backward(auto& c) const {
    using R = real_of<decltype(c)>;
    const auto slice = c.grad(0);
    const double g = fault == ScalarFault::forgets_adjoint ? 1.0 : double(c.dout(0)(0));
    for (Index r = 0; r < c.in(0).rows(); ++r) {
      const double value = 2 * g * double(c.in(0)(r));
      if (fault == ScalarFault::stores) {
        *slice.memory().template row<R>(r) = R(value);
      } else {
        slice.write(r, value);
      }
    }
  }
};

GradcheckReport check_squares(ScalarFault fault, const GradcheckOptions& options = {}) {
  static const std::vector<double> point{0.5, -1.25, 2, 0.75};
  return gradcheck([&](auto& tape, auto x) { return tape.record(SumOfSquares{fault}, {x}, Shape{1, 1}); }, point, options);
}

const std::vector<double> kPoint{0.51, -1.23, 2.3, -0.77, 1.53, 0.21, -2.1, 1.03};

GradcheckReport check_cubic(Fault fault, const GradcheckOptions& options = {}) {
  return gradcheck([&](auto& tape, auto x) { return tape.record(Cubic{fault}, {x}, x.shape()); }, View(kPoint.data(), 4, 2),
                   options);
}

// NaN to the left of 0: only a probe finds it.
struct NanBelowZero {
  static constexpr auto name = "nan_below_zero";
  void forward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) {
      const double x = c.in(0)(r);
      c.out(0).write(r, x < 0 ? std::numeric_limits<double>::quiet_NaN() : x);
    }
  }
  void backward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) c.grad(0).write(r, c.dout(0)(r));
  }
};

// (Σ over all ranks of x²)² / 2, x of any length on each rank; the fault scales this rank's derivative.
struct SquareOverRanks {
  static constexpr auto name = "square_over_ranks";
  Communicator* communicator;
  double fault = 1;
  double sum = 0;
  void forward(auto& c) {
    sum = 0;
    for (Index r = 0; r < c.in(0).rows(); ++r) sum += static_cast<double>(c.in(0)(r)) * c.in(0)(r);
    sum = communicator->all_reduce(sum, Reduce::sum);
    c.out(0).write(0, sum * sum / 2);
  }
  void backward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) c.grad(0).write(r, fault * sum * 2 * c.in(0)(r)*c.dout(0)(0));
  }
};

// |Σ over all ranks of x|, whose kink rank 1 alone reports.
struct AbsoluteOnRank1 {
  static constexpr auto name = "absolute_on_rank_1";
  Communicator* communicator;
  void forward(auto& c) const {
    double sum = 0;
    for (Index r = 0; r < c.in(0).rows(); ++r) sum += c.in(0)(r);
    sum = communicator->all_reduce(sum, Reduce::sum);
    c.out(0).write(0, std::abs(sum));
    if (c.probing() && communicator->rank() == 1 && std::abs(sum) > 0) c.kink();
  }
  void backward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) c.grad(0).write(r, 0);
  }
};

GradcheckOptions over(Communicator& communicator, std::vector<Index> coordinates) {
  GradcheckOptions options;
  options.rank = communicator.rank();
  options.coordinates = std::move(coordinates);
  options.sum = [&communicator](double value) { return communicator.all_reduce(value, Reduce::sum); };
  return options;
}

// y = x², one factor of it frozen in the value, in the derivative, in both or in neither.
struct Straight {
  static constexpr auto name = "straight";
  bool stops_value;
  bool stops_slope;
  void forward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) {
      const double x = c.in(0)(r);
      const double weight = stops_value ? c.base(0)(r) : c.in(0)(r);
      c.out(0).write(r, weight * x);
    }
  }
  void backward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) c.grad(0).write(r, c.dout(0)(r) * (stops_slope ? 1 : 2) * c.in(0)(r));
  }
};

}  // namespace

TEST_SUITE("engine/gradcheck") {
  TEST_CASE("a right gradient passes, every entry is compared, and nothing was stopped") {
    const GradcheckReport report = check_cubic(Fault::none);
    CAPTURE(report.summary());
    CHECK(report);
    CHECK(report.checked == 8);
    CHECK(report.skipped_kinks == 0);
    CHECK(report.worst_relative_error < 1e-9);
    CHECK(report.stopped == 0);
    CHECK(report.fp32_gap < 1e-6);
    CHECK(report.fp32_bound > 0);
  }
  TEST_CASE("every kind of wrong gradient fails (B87)") {
    for (const Fault fault : {Fault::sign, Fault::scale, Fault::one_entry, Fault::missing_term, Fault::uniform_upstream,
                              Fault::one_row_nan, Fault::zero}) {
      const GradcheckReport report = check_cubic(fault);
      CAPTURE(static_cast<int>(fault));
      CAPTURE(report.summary());
      CHECK_FALSE(report);
    }
  }
  TEST_CASE("the report names the worst entry and both numbers") {
    const GradcheckReport report = check_cubic(Fault::one_entry);
    CHECK(report.input == 0);
    CHECK(report.row == 2);
    CHECK(report.col == 1);
    CHECK(report.analytic == doctest::Approx(1.001 * report.numeric).epsilon(1e-6));
    CHECK(report.failure == "an entry differs from its difference quotient");
    CHECK(contains(report.summary(),
                   "gradcheck FAILED: an entry differs from its difference quotient; worst relative error "));
    CHECK(contains(report.summary(), " at input 0 [2, 1] (analytic "));
    CHECK(contains(report.summary(), "; 8 checked, 0 skipped at kinks; stopped 0; fp32 gap "));
    CHECK(contains(check_cubic(Fault::none).summary(), "gradcheck passed; worst relative error "));
  }
  TEST_CASE("an upstream taken for uniform passes under a uniform upstream: the checker's own is not (B78, B88)") {
    const auto summed = [](auto& tape, auto x) {
      return tape.record(Sum{}, {tape.record(Cubic{Fault::uniform_upstream}, {x}, x.shape())}, Shape{1});
    };
    CHECK(gradcheck(summed, View(kPoint.data(), 4, 2)));  // as a loss that sums, the fault does not show
    CHECK_FALSE(check_cubic(Fault::uniform_upstream));
  }
  TEST_CASE("a scalar whose backward forgets its adjoint fails") {
    CHECK(check_squares(ScalarFault::none));
    CHECK(!check_squares(ScalarFault::forgets_adjoint));
  }

  TEST_CASE("a backward that stores where the slice says to add fails") {
    CHECK(check_squares(ScalarFault::stores).failure.find("stored") != std::string::npos);
  }

  TEST_CASE("an infinity among the inputs is no entry to check, and hides no wrong gradient") {
    const std::vector<double> point{0.5, -std::numeric_limits<double>::infinity(), 2};
    const auto f = [](auto& tape, auto x) {
      (void)tape;
      return token_map([](const auto& a) { return exp(a); }, x);
    };
    const GradcheckReport report = gradcheck(f, point, {.directions = 2, .entries = 8});
    CHECK_MESSAGE(report, report.summary());
    CHECK(report.checked < 10);
  }

  TEST_CASE("a rank that was to compare and compared nothing fails") {
    CHECK_THROWS_AS((void)check_squares(ScalarFault::none, {.entries = 5, .coordinates = {0}}), UsageError);
  }

  TEST_CASE("a gradient that is NaN fails though no difference can say so") {
    CHECK(check_cubic(Fault::one_row_nan).failure == "a gradient entry is not finite");
  }
  TEST_CASE("a NaN at one probe is not forgotten when later entries are right") {
    const std::vector<double> at{0, 1, 2};
    const GradcheckReport report =
        gradcheck([](auto& tape, auto x) { return tape.record(NanBelowZero{}, {x}, x.shape()); }, at);
    CHECK_FALSE(report);
    CHECK(std::isnan(report.worst_relative_error));
    CHECK(report.row == 0);
  }
  TEST_CASE("an fp32 tape that computes in bf16 is found, and one NaN of it is not forgotten either (B10)") {
    const GradcheckReport coarse = check_cubic(Fault::bf16_in_fp32);
    CHECK(coarse.failure == "the fp32 tape differs from the fp64 tape");
    CHECK(coarse.worst_relative_error < 1e-9);
    CHECK(coarse.fp32_gap > 1e-4);
    CHECK_FALSE(check_cubic(Fault::nan_in_fp32));
    CHECK(check_cubic(Fault::bf16_in_fp32, {.fp32 = Fp32Check::skip}));
    CHECK(check_cubic(Fault::bf16_in_fp32, {.fp32 = Fp32Check::skip}).fp32_bound == 0);
  }
  TEST_CASE("differences are taken in fp64 from an f32 point too (B85)") {
    const std::vector<float> z{2, 0};
    const GradcheckReport report =
        gradcheck([](auto& tape, auto x) { return tape.record(LogProb{}, {x}, Shape{1}); }, View(z.data(), 1, 2));
    CHECK(report);
    CHECK(report.checked == 2);
    CHECK(report.worst_relative_error < 1e-9);  // an fp32 difference of step 1e-5 is wrong in the third digit
    CHECK(std::abs(report.numeric) == doctest::Approx(1 / (1 + std::exp(2.0))).epsilon(1e-8));
  }
  TEST_CASE("several inputs are checked each, and the input at fault is named") {
    const std::vector<double> a{1, 2, 3};
    const std::vector<double> b{4, -5, 0.5};
    const auto f = [](Fault fault) {
      return [fault](auto& tape, auto x, auto y) {
        return tape.record(Multiply{}, {x, tape.record(Cubic{fault}, {y}, y.shape())}, x.shape());
      };
    };
    const std::array<View, 2> points{View(a), View(b)};
    const auto right = f(Fault::none);
    CHECK(gradcheck(right, points).checked == 6);
    CHECK(gradcheck(right, points));
    const auto wrong = f(Fault::missing_term);
    const GradcheckReport report = gradcheck(wrong, points);
    CHECK_FALSE(report);
    CHECK(report.input == 1);
  }
  TEST_CASE("random directions find one wrong entry of a hundred thousand, sampled entries count as asked") {
    const std::vector<double> x(100'000, 0.5);
    const auto f = [](Fault fault) {
      return [fault](auto& tape, auto v) { return tape.record(Cubic{fault}, {v}, v.shape()); };
    };
    const View point(x.data(), 50'000, 2);
    const auto right = f(Fault::none);
    const GradcheckReport good = gradcheck(right, point, {.directions = 3, .entries = 5});
    CAPTURE(good.summary());
    CHECK(good);
    CHECK(good.checked == 8);
    const auto wrong = f(Fault::one_entry);
    const GradcheckReport bad = gradcheck(wrong, point, {.directions = 3});
    CHECK_FALSE(bad);
    CHECK(bad.row == -1);
    CHECK(contains(bad.summary(), "along a random direction"));
  }
  TEST_CASE("the step is what the point's own rounding makes of it: a big number moves by whole units in its last place") {
    const std::vector<double> at{1234567.5};
    const GradcheckReport report = gradcheck(
        [](auto&, auto x) { return token_map([](auto v) { return v - 1234567.0; }, x); }, at, {.fp32 = Fp32Check::skip});
    CAPTURE(report.summary());
    CHECK(report);
  }
  TEST_CASE("an empty point passes: there is nothing to be wrong") {
    const std::vector<double> none;
    const GradcheckReport report = gradcheck([](auto& tape, auto x) { return tape.record(Sum{}, {x}, Shape{1}); }, none);
    CAPTURE(report.summary());
    CHECK(report);
    CHECK(report.checked == 0);
  }
  TEST_CASE("integers are no point to differentiate at, and what f throws comes through") {
    const std::vector<int> ints{1};
    const auto f = [](auto& tape, auto x) { return tape.record(Sum{}, {x}, Shape{1}); };
    check_says(refusal([&] { (void)gradcheck(f, ints); }), "gradcheck: expected floating-point inputs, found i32");
    const auto throws = [](auto& tape, auto x) {
      if (tape.value(x).rows > 0) throw DataError({"f", "a", "b"});
      return x;
    };
    (void)refusal<DataError>([&] { (void)gradcheck(throws, kPoint); });
  }
  TEST_CASE("progress runs from above 0 to 1") {
    std::vector<double> seen;
    (void)check_cubic(Fault::none, {.progress = [&](double share) { seen.push_back(share); }});
    REQUIRE(seen.size() == 8);
    CHECK(seen.front() == 0.125);
    CHECK(seen.back() == 1);
  }
}

TEST_SUITE("engine/gradcheck stops") {
  // −stop(exp(x − old)) · x: the gradient of importance sampling
  const auto weighed = [](auto&, auto x) { return token_map([](auto v) { return -stop_gradient(exp(v + 0.5)) * v; }, x); };
  const auto plain = [](auto&, auto x) { return token_map([](auto v) { return -exp(v + 0.5) * v; }, x); };
  const std::vector<double> at{0.3, -0.4, 1.1};

  TEST_CASE("a stopped weight is checked against its contract, and the report says that something was stopped") {
    const GradcheckReport report = gradcheck(weighed, at);
    CAPTURE(report.summary());
    CHECK(report);
    CHECK(report.stopped > 0.1);
  }
  TEST_CASE("where nothing is stopped, stopped is nothing but rounding") {
    const GradcheckReport report = gradcheck(plain, at);
    CHECK(report);
    CHECK(report.stopped == 0);
  }
  TEST_CASE("a missing and a superfluous stop_gradient pass the frozen check, and stopped tells them (B64)") {
    const auto missing = gradcheck(plain, at);        // expected to stop
    const auto superfluous = gradcheck(weighed, at);  // expected not to
    CHECK(missing);
    CHECK(missing.stopped < 1e-7);
    CHECK(superfluous);
    CHECK(superfluous.stopped > 1e-7);
  }
  TEST_CASE("a node that stops by c.base must stop its derivative too, and only then") {
    const auto check = [&](bool value, bool slope) {
      return gradcheck([=](auto& tape, auto x) { return tape.record(Straight{value, slope}, {x}, x.shape()); }, at);
    };
    CHECK(check(true, true));
    CHECK(check(true, true).stopped > 0.1);
    CHECK(check(false, false));
    CHECK(check(false, false).stopped == 0);
    CHECK_FALSE(check(true, false));
    CHECK_FALSE(check(false, true));
  }
}

TEST_SUITE("engine/gradcheck kinks") {
  TEST_CASE("probes that straddle a kink are skipped and counted, the others are compared") {
    const auto f = [](auto&, auto x) { return token_map([](auto v) { return clamp(v, -1.0, 1.0) * v; }, x); };
    const std::vector<double> at{1, 0.5, -0.25, 3, -2, 0.75, 0.1, 0.2};
    const GradcheckReport report = gradcheck(f, at);
    CAPTURE(report.summary());
    CHECK(report);
    CHECK(report.skipped_kinks == 1);
    CHECK(report.checked == 7);
  }
  TEST_CASE("abs, min and max are kinks where their sides meet, on one side they are not") {
    const auto f = [](auto&, auto x) { return token_map([](auto v) { return abs(v) + max(v, 2.0 * v) + min(v, -v); }, x); };
    const std::vector<double> zero{0, 1, 2, 3};
    CHECK(gradcheck(f, zero).skipped_kinks == 1);
    const std::vector<double> apart{1e-4, -1e-4};
    CHECK(gradcheck(f, apart).skipped_kinks == 0);
    CHECK(gradcheck(f, apart));
  }
  TEST_CASE("a kink hides no wrong gradient of the other entries") {
    const auto f = [](auto& tape, auto x) {
      return tape.record(Cubic{Fault::scale}, {token_map([](auto v) { return abs(v); }, x)}, x.shape());
    };
    const std::vector<double> at{0, 1, 2, 3};
    CHECK_FALSE(gradcheck(f, at));
    CHECK(gradcheck(f, at).skipped_kinks == 1);
  }
  TEST_CASE("more kinks than their share are a failure, and a point of kinks alone checked nothing") {
    const auto f = [](auto&, auto x) { return token_map([](auto v) { return abs(v); }, x); };
    const std::vector<double> half{0, 0, 1, 2};
    CHECK(gradcheck(f, half).failure == "too many probes straddle a kink");
    CHECK(gradcheck(f, half, {.most_kinks = 0.5}));
    const std::vector<double> all{0, 0};
    CHECK(gradcheck(f, all, {.most_kinks = 1}).failure == "nothing could be checked");
  }
}

TEST_SUITE("engine/gradcheck over ranks") {
  const std::array<std::vector<double>, 3> parts{std::vector<double>{0.5, -1, 2}, std::vector<double>{1.5, 0.25},
                                                 std::vector<double>{}};

  GradcheckReport on(Communicator & communicator, double fault, const GradcheckOptions& options) {
    return gradcheck(
        [&](auto& tape, auto x) {
          return tape.record(SquareOverRanks{&communicator, fault}, {x}, Shape{1});
        },
        parts[static_cast<std::size_t>(communicator.rank())], options);
  }

  TEST_CASE("ranks take turns: each checks its own entries while all evaluate") {
    const auto reports = threads::run(3, [&](Communicator& c) { return on(c, 1, over(c, {3, 2, 0})); });
    const std::array<Index, 3> checked{3, 2, 0};
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CAPTURE(reports[rank].summary());
      CHECK(reports[rank]);
      CHECK(reports[rank].checked == checked[rank]);
    }
  }
  TEST_CASE("a wrong gradient on one rank fails there") {
    const auto reports = threads::run(3, [&](Communicator& c) {
      return on(c, c.rank() == 1 ? 1 + 1e-5 : 1, over(c, {3, 2, 0}));
    });
    CHECK(reports[0]);
    CHECK_FALSE(reports[1]);
    CHECK(reports[2]);
  }
  TEST_CASE("a direction moves all ranks' entries together, so a wrong gradient anywhere fails everywhere") {
    for (const double fault : {1.0, 1 + 1e-4}) {
      const auto reports = threads::run(3, [&](Communicator& c) {
        GradcheckOptions options = over(c, {2, 2, 2});
        options.directions = 4;
        options.entries = 2;
        return on(c, c.rank() == 1 ? fault : 1, options);
      });
      CHECK(reports[0].checked == 6);
      CHECK(reports[2].checked == 4);  // it has no entries, and takes part in the directions
      for (const GradcheckReport& report : reports) CHECK(static_cast<bool>(report) == (fault == 1));
    }
  }
  TEST_CASE("a kink that any rank sees is skipped by the rank whose turn it is") {
    // rank 1 alone works out |Σ x|, of entries that rank 0 holds alone
    const auto reports = threads::run(2, [&](Communicator& c) {
      const std::vector<double> x(c.rank() == 0 ? 2 : 0, 0.0);
      GradcheckOptions options = over(c, {2, 0});
      options.most_kinks = 1;
      return gradcheck([&](auto& tape, auto v) { return tape.record(AbsoluteOnRank1{&c}, {v}, Shape{1}); }, x, options);
    });
    CHECK(reports[0].skipped_kinks == 2);
    CHECK(reports[0].checked == 0);
    CHECK(reports[1].skipped_kinks == 0);
  }
  TEST_CASE("coordinates that are not the ranks' own sizes are refused, not followed out of bounds") {
    const std::vector<double> x{1, 2};
    const auto f = [](auto& tape, auto v) { return tape.record(Sum{}, {v}, Shape{1}); };
    GradcheckOptions options;
    options.coordinates = {3};
    check_says(refusal([&] { (void)gradcheck(f, x, options); }), "gradcheck: expected coordinates of every rank");
    options.coordinates = {2};
    options.rank = 1;
    (void)refusal([&] { (void)gradcheck(f, x, options); });
    options.rank = -1;
    (void)refusal([&] { (void)gradcheck(f, x, options); });
    options.rank = 0;
    CHECK(gradcheck(f, x, options));
  }
}
