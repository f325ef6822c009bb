// SPDX-License-Identifier: Apache-2.0
// The one form of a row's gradient, and how it is written into a slice: alone, added, narrow, over the logits themselves.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/reference.h"
#include "ops/row_gradient.h"
#include "ops/token_map.h"
#include "ops/vocab_kernels.h"
#include "ops/vocab_stats.h"
#include "tests/ops/sample.h"
#include "tests/support/near.h"
#include "tests/support/random.h"

namespace losstape::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

RowGradient form_of(const RowStats& stats, double max, double a, double h, double temperature = 1) {
  return {max, log_sum(stats), mean_below_max(stats), a, h, temperature};
}

// Logits of one dtype with a target each, and what a backward of log-prob and entropy together writes.
struct Rows {
  Index T = 9;
  Index V = 37;
  Buffer logits;
  std::vector<std::int64_t> targets;
  std::vector<double> seed;

  explicit Rows(DType dtype) : logits(T, V, dtype) {
    Random random(17);
    for (Index r = 0; r < T; ++r) {
      for (Index c = 0; c < V; ++c) logits.set(r, c, 3 * random.normal());
      targets.push_back(r == 4 ? -100 : random.below(V));
      seed.push_back(random.adjoint());
    }
  }
  template <class R>
  void differentiate(BasicTape<R>& tape, BasicVar<R> z) const {
    const auto s = vocab_stats(z, targets, VocabShard::whole(V), {.temperature = 0.8, .entropy = true, .chunk_rows = 2});
    tape.backward(s.logprob + s.entropy, seed);
  }
  template <class R>
  [[nodiscard]] Buffer gradient(DType slice_dtype, Grad grad = Grad::overwrite, double before = kNan) const {
    Buffer slice(T, V, slice_dtype);
    slice.fill(before);
    BasicTape<R> tape({.threads = 2, .audit = Audit::unwritten_rows});
    differentiate(tape, tape.input(logits.view(), slice.mutable_view(), grad, SliceRounding::allowed));
    return slice;
  }
};

}  // namespace

TEST_CASE("the form and a point's own value give the reference's gradients") {
  Random random(2);
  reference::Matrix x(1, 20);
  for (Index j = 0; j < 20; ++j) x(0, j) = 3 * random.normal();
  x(0, 5) = -kInf;
  for (const double T : {1.0, 0.6, 2.5}) {
    const VocabShard shard = VocabShard::whole(20);
    const RowStats stats = local_row_stats(Values<double>(View(x)), 0, shard, T);
    const double g = 1.25;
    const double h = -0.5;
    const double l = 0.75;
    const RowGradient row = form_of(stats, x.maxCoeff(), l - g, h, T);
    const std::vector<Index> target{7};
    const reference::Vector one = reference::Vector::Ones(1);
    const reference::Matrix right = reference::logprob_gradient(x, target, g * one, T) +
                                    reference::entropy_gradient(x, h * one, T) + reference::lse_gradient(x, l * one, T);
    const RowScalars<double> form(row);
    for (Index j = 0; j < 20; ++j) {
      CAPTURE(j);
      const double found = j == 7 ? point_gradient(row, x(0, j), g) : form(x(0, j));
      CHECK(std::abs(found - right(0, j)) <= 1e-14);
    }
    CHECK(form(-kInf) == 0);
    CHECK(point_gradient(row, -kInf, g) == 0);
  }
}

TEST_CASE("a NaN reaches every gradient of its row") {
  RowGradient row = form_of(RowStats{1, 0.5, -0.25}, kNan, -1, 0.5);
  CHECK(std::isnan(RowScalars<float>(row)(1.0F)));
  CHECK(std::isnan(RowScalars<float>(row)(-std::numeric_limits<float>::infinity())));
  CHECK(std::isnan(point_gradient(row, 1, 1)));
  CHECK(std::isnan(point_gradient(row, -kInf, 1)));
  row.max = 1;
  CHECK(std::isnan(RowScalars<float>(row)(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(point_gradient(row, kNan, 1)));
}

TEST_CASE("a target that is nearly certain keeps its gradient in full relative precision") {
  for (const double rest : {1e-3, 1e-7, 1e-12}) {
    const RowStats stats{0, rest, rest * std::log(rest)};
    const RowGradient row = form_of(stats, 0, -1, 0);
    CHECK(point_gradient(row, 0, 1) == relative(rest / (1 + rest), 1e-12));
  }
}

TEST_CASE("a 16-bit slice holds the fp32 gradient rounded once") {
  for (const DType logits : {DType::f32, DType::bf16, DType::f16}) {
    const Rows rows(logits);
    const Buffer wide = rows.gradient<float>(DType::f32);
    for (const DType narrow : {DType::bf16, DType::f16}) {
      CAPTURE(name(logits));
      CAPTURE(name(narrow));
      const Buffer found = rows.gradient<float>(narrow);
      for (Index r = 0; r < rows.T; ++r) {
        for (Index c = 0; c < rows.V; ++c) {
          Buffer once(1, 1, narrow);
          once.set(0, 0, wide.get(r, c));
          REQUIRE(found.get(r, c) == once.get(0, 0));
        }
      }
    }
  }
}

TEST_CASE("a gradient over the logits equals the one in a slice of their dtype apart, bit for bit") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name(dtype));
    const Rows rows(dtype);
    const Buffer apart = rows.gradient<float>(dtype);
    Rows over(dtype);
    Tape tape({.threads = 3, .audit = Audit::unwritten_rows});
    const Var z = tape.input_in_place(over.logits.mutable_view());
    over.differentiate(tape, z);
    CHECK(over.logits.bytes() == apart.bytes());
  }
  const Rows rows(DType::f64);
  const Buffer apart = rows.gradient<double>(DType::f64);
  Rows over(DType::f64);
  TapeF64 tape;
  over.differentiate(tape, tape.input_in_place(over.logits.mutable_view()));
  CHECK(over.logits.bytes() == apart.bytes());
}

TEST_CASE("an added gradient is the sum in fp32, rounded once to the slice, and rows without gradient keep what they hold") {
  const Rows rows(DType::bf16);
  const Buffer alone = rows.gradient<float>(DType::f32);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name(dtype));
    const Buffer added = rows.gradient<float>(dtype, Grad::accumulate, 0.3125);
    const double half_ulp = dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
    for (Index r = 0; r < rows.T; ++r) {
      for (Index c = 0; c < rows.V; ++c) {
        const double right = 0.3125 + alone.get(r, c);
        REQUIRE(std::abs(added.get(r, c) - right) <= half_ulp * 1.001 * (std::abs(right) + 0x1p-14));
      }
    }
  }
}

TEST_CASE("a row that has no target and a zero upstream are written as +0 in every dtype") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Rows rows(dtype);
    for (Index c = 0; c < rows.V; ++c) rows.logits.set(2, c, kNan);
    rows.seed[2] = 0;
    Buffer slice(rows.T, rows.V, dtype);
    slice.fill(kNan);
    Tape tape({.audit = Audit::unwritten_rows});
    const auto s = vocab_stats(tape.input(rows.logits.view(), slice.mutable_view(), Grad::overwrite, SliceRounding::allowed),
                               rows.targets, VocabShard::whole(rows.V));
    tape.backward(s.logprob, rows.seed);
    for (const Index r : {Index{2}, Index{4}}) {
      for (Index c = 0; c < rows.V; ++c) REQUIRE(std::bit_cast<std::uint64_t>(slice.get(r, c)) == 0);
    }
  }
}

}  // namespace losstape::testing
