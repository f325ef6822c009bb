// SPDX-License-Identifier: Apache-2.0
// The statistics of a row: a monoid, with the maximum left out of its own sum, which no special value confuses.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/reference.h"
#include "ops/row_stats.h"
#include "ops/vocab_kernels.h"
#include "tests/support/near.h"
#include "tests/support/random.h"

namespace losstape::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// One column.
RowStats column(double x) { return {x, 0, 0}; }

RowStats of_columns(const std::vector<double>& x) {
  RowStats row;
  for (const double v : x) row = join(row, column(v));
  return row;
}

bool same(const RowStats& a, const RowStats& b) { return a.m == b.m && a.s == b.s && a.u == b.u; }

bool near(const RowStats& a, const RowStats& b, double bound) {
  return a.m == b.m && std::abs(a.s - b.s) <= bound * std::abs(b.s) && std::abs(a.u - b.u) <= bound * std::abs(b.u);
}

template <class R>
RowStats of_row(const std::vector<R>& x, Index begin = 0, double temperature = 1) {
  const VocabShard shard = VocabShard::range({}, begin, begin + Index(x.size()), begin + Index(x.size()));
  return local_row_stats(Values<R>(View(x.data(), 1, Index(x.size()))), 0, shard, temperature);
}

}  // namespace

TEST_CASE("a join of columns gives the sums of their definition") {
  const RowStats row = of_columns({1, 3, 2, -kInf, 3});
  CHECK(row.m == 3);
  CHECK(row.s == relative(std::exp(-2.0) + std::exp(-1.0) + 1, 1e-15));
  CHECK(row.u == relative(-2 * std::exp(-2.0) - std::exp(-1.0), 1e-15));
}

TEST_CASE("the identity changes nothing on either side") {
  for (const RowStats& row : {RowStats(), column(2.5), RowStats{-7, 3, -1.5}, of_columns({1, 2, 3})}) {
    CHECK(same(join(row, RowStats()), row));
    CHECK(same(join(RowStats(), row), row));
  }
}

TEST_CASE("a join is commutative, at ties too, and associative to rounding") {
  Random random(3);
  for (int turn = 0; turn < 2000; ++turn) {
    CAPTURE(turn);
    const auto any = [&] {
      std::vector<double> x;
      for (Index k = random.below(5); k >= 0; --k) x.push_back(random.chance(0.2) ? -kInf : double(random.between(-3, 3)));
      return of_columns(x);
    };
    const RowStats a = any();
    const RowStats b = any();
    const RowStats c = any();
    // Ties: one order of the sums, so equal bits only up to the last rounding.
    REQUIRE(near(join(a, b), join(b, a), 4e-16));
    REQUIRE(near(join(join(a, b), c), join(a, join(b, c)), 2e-15));
  }
}

TEST_CASE("a join of two equal maxima counts the second one") {
  const RowStats tie = join(column(5), column(5));
  CHECK(tie.m == 5);
  CHECK(tie.s == 1);
  CHECK(tie.u == 0);
  CHECK(entropy(tie) == relative(std::log(2.0), 1e-15));
}

TEST_CASE("log-prob, 1 - p and entropy keep their precision where a column is nearly certain") {
  for (const double gap : {5.0, 17.0, 25.0, 40.0, 60.0}) {
    CAPTURE(gap);
    const RowStats row = of_columns({0, gap});
    const long double rest = std::exp(-static_cast<long double>(gap));
    CHECK(row.s == relative(double(rest), 1e-14));
    CHECK(log_prob(row, gap) == relative(double(-std::log1p(rest)), 1e-14));
    CHECK(log_prob(row, 0) == relative(double(-gap - std::log1p(rest)), 1e-14));
    CHECK(entropy(row) == relative(double(std::log1p(rest) + rest * gap / (1 + rest)), 1e-13));
  }
}

TEST_CASE("NaN, +inf and rows of -inf alone are told apart") {
  CHECK(fault_of(of_columns({1, 2})) == RowFault::none);
  CHECK(fault_of(of_columns({-kInf, -kInf})) == RowFault::no_support);
  CHECK(fault_of(RowStats()) == RowFault::no_support);
  CHECK(fault_of(of_row<float>({1, std::numeric_limits<float>::quiet_NaN(), 2})) == RowFault::nan);
  CHECK(fault_of(of_row<double>({kNan})) == RowFault::nan);
  CHECK(fault_of(of_row<double>({kNan, -kInf, -kInf})) == RowFault::nan);
  CHECK(fault_of(of_row<double>({-kInf, -kInf, kNan})) == RowFault::nan);
  CHECK(fault_of(of_row<double>({1, kInf, 2})) == RowFault::plus_infinity);
  CHECK(fault_of(of_row<double>({kInf, kInf})) == RowFault::plus_infinity);
  CHECK(fault_of(of_row<double>({-kInf, -kInf})) == RowFault::no_support);
  CHECK(fault_of(of_row<double>({})) == RowFault::no_support);
}

TEST_CASE("a NaN and a +inf survive a join with any other part") {
  const RowStats nan = of_row<double>({kNan, 1});
  const RowStats only_nan = of_row<double>({kNan});
  const RowStats infinite = of_row<double>({kInf, 1});
  for (const RowStats& other : {RowStats(), column(0), column(50), column(-50), of_columns({1, 2, 3})}) {
    CHECK(fault_of(join(nan, other)) == RowFault::nan);
    CHECK(fault_of(join(other, nan)) == RowFault::nan);
    CHECK(fault_of(join(only_nan, other)) == RowFault::nan);
    CHECK(fault_of(join(other, only_nan)) == RowFault::nan);
    CHECK(fault_of(join(infinite, other)) == RowFault::plus_infinity);
    CHECK(fault_of(join(other, infinite)) == RowFault::plus_infinity);
  }
  CHECK(fault_of(join(nan, infinite)) != RowFault::none);
  CHECK(fault_of(join(infinite, infinite)) == RowFault::plus_infinity);
}

TEST_CASE("a row's statistics do not depend on where it is cut at tiles") {
  Random random(9);
  std::vector<float> x;
  for (int j = 0; j < 3 * 4096 + 77; ++j) x.push_back(float(3 * random.normal()));
  const RowStats whole = of_row(x);
  RowStats joined;
  for (std::size_t at = 0; at < x.size(); at += 4096) {
    const std::size_t end = std::min(x.size(), at + 4096);
    joined = join(joined, of_row(std::vector<float>(x.begin() + long(at), x.begin() + long(end)), Index(at)));
  }
  CHECK(same(whole, joined));
  // Shares that begin off a tile are cut at the tiles of the whole vocabulary.
  const auto cut = [&](std::size_t begin, std::size_t end) {
    return of_row(std::vector<float>(x.begin() + long(begin), x.begin() + long(end)), Index(begin));
  };
  const RowStats middle = cut(1000, 9000);
  CHECK(same(middle, join(join(cut(1000, 4096), cut(4096, 8192)), cut(8192, 9000))));
}

TEST_CASE("statistics at a temperature are those of the divided logits") {
  Random random(10);
  for (const double T : {0.3, 0.7, 2.0, 5.0}) {
    reference::Matrix x(1, 300);
    std::vector<double> row;
    for (Index j = 0; j < 300; ++j) {
      x(0, j) = 5000 + 4 * random.normal();
      row.push_back(x(0, j));
    }
    const RowStats found = of_row(row, 0, T);
    CHECK(found.m == x.maxCoeff() / T);
    CHECK(found.m + log_sum(found) == relative(reference::lse(x, T)(0), 1e-14));
    CHECK(entropy(found) == relative(reference::entropy(x, T)(0), 1e-11));
    const VocabShard shard = VocabShard::whole(300);
    CHECK(local_row(Values<double>(View(row.data(), 1, 300)), 0, shard, T).max == x.maxCoeff());
  }
}

TEST_CASE("padding columns and empty shards leave the identity") {
  const std::vector<float> x{1, 2, 1e30F, std::numeric_limits<float>::quiet_NaN()};
  const VocabShard padded = VocabShard::whole(2, 4);
  const RowStats row = local_row_stats(Values<float>(View(x.data(), 1, 4)), 0, padded);
  CHECK(row.m == 2);
  CHECK(row.s == doctest::Approx(std::exp(-1.0)));
  const VocabShard beyond = VocabShard::range({}, 2, 4, 2);
  CHECK(same(local_row_stats(Values<float>(View(x.data() + 2, 1, 2)), 0, beyond), RowStats()));
  const VocabShard empty = VocabShard::range({}, 2, 2, 4);
  CHECK(same(local_row_stats(Values<float>(View(x.data(), 1, 0)), 0, empty), RowStats()));
}

}  // namespace losstape::testing
