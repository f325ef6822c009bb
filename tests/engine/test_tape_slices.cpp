// SPDX-License-Identifier: Apache-2.0
// The slices: who writes first, who adds, what is refused, and what a second backward finds.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/tape.h"
#include "tests/engine/nodes.h"
#include "tests/support/refusal.h"

using namespace losstape;
using namespace losstape::testing;

namespace {

const float kNaN = std::numeric_limits<float>::quiet_NaN();

// Σ w · x for several microbatches x: what a training step does to one weight.
void microbatch(Tape& tape, Leaf<float>& weight, double x, Grad grad) {
  tape.backward(tape.record(Scale{x}, {weight.on(tape, grad)}, Shape{1}));
  tape.clear();
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Rows of a table by number: y_r = table[ids[r]], gradients scattered back.
struct Gather {
  static constexpr auto name = "gather";
  std::vector<Index> ids;
  void forward(auto& c) const {
    for (std::size_t r = 0; r < ids.size(); ++r) c.out(0).write(static_cast<Index>(r), c.in(0)(ids[r]));
  }
  void backward(auto& c) const {
    const auto table = c.grad(0).scatter();
    for (std::size_t r = 0; r < ids.size(); ++r) table.write(ids[r], c.dout(0)(static_cast<Index>(r)));
  }
};

// Writes rows with an even number and says that the others have no gradient.
struct EvenRows {
  static constexpr auto name = "even_rows";
  void forward(auto& c) const { c.out(0).write(0, c.in(0)(0)); }
  void backward(auto& c) const {
    const auto dx = c.grad(0);
    for (Index r = 0; r < dx.rows(); ++r) {
      if (r % 2 == 0) {
        for (Index j = 0; j < dx.cols(); ++j) dx.write(r, j, 5);
      } else {
        dx.zero_row(r);
      }
    }
  }
};

struct Twice : LogProb {
  static constexpr auto name = "twice";
};

struct Throws : LogProb {
  static constexpr auto name = "throws";
  void forward(auto&) const { throw UsageError({"throws", "a", "b"}); }
};

}  // namespace

TEST_SUITE("engine/tape slices") {
  TEST_CASE("microbatches accumulate; overwrite takes the last alone and needs no zero fill (B76)") {
    Tape tape;
    Leaf<float> weight({1}, 1, 0.0F);
    for (const double x : {1.0, 2.0, 4.0}) microbatch(tape, weight, x, Grad::accumulate);
    CHECK(weight.slice[0] == 7);
    weight.slice[0] = kNaN;
    for (const double x : {1.0, 2.0, 4.0}) microbatch(tape, weight, x, Grad::overwrite);
    CHECK(weight.slice[0] == 4);
    microbatch(tape, weight, 1, Grad::accumulate);
    CHECK(weight.slice[0] == 5);
  }
  TEST_CASE("the first of several nodes stores, the others add, whatever stood in the slice") {
    for (const Grad grad : {Grad::overwrite, Grad::zeroed, Grad::accumulate}) {
      const float before = grad == Grad::overwrite ? kNaN : grad == Grad::zeroed ? 0.0F : 10.0F;
      Tape tape;
      Leaf<float> x({1, 2}, 1, before);
      const Var v = x.on(tape, grad);
      const Var a = tape.record(Scale{2}, {v}, v.shape());
      const Var b = tape.record(Scale{3}, {v}, v.shape());
      tape.backward(tape.record(Sum{}, {tape.record(Add{}, {a, b}, v.shape())}, Shape{1}));
      const float start = grad == Grad::accumulate ? 10.0F : 0.0F;
      CHECK(x.slice == std::vector<float>{start + 5, start + 5});
    }
  }
  TEST_CASE("a second backward gives the same bits, twice the seed twice the gradient, and the first result stays (B74)") {
    Tape tape;
    Leaf<float> z({0, 0}, 2);
    const Var logp = tape.record(LogProb{}, {z.on(tape)}, Shape{1});
    tape.backward(logp);
    CHECK(z.slice == std::vector<float>{0.5F, -0.5F});
    const std::vector<float> first = z.slice;
    tape.backward(logp);
    CHECK(same_bits(z.slice, first));
    const std::vector<float> two{2};
    tape.backward(logp, View(two));
    CHECK(z.slice == std::vector<float>{1, -1});
    CHECK(first == std::vector<float>{0.5F, -0.5F});
    tape.clear();
    (void)refusal([&] { tape.backward(logp); });
  }
  TEST_CASE("a second backward of another loss sees nothing of the first") {
    Tape tape;
    Leaf<float> x({1, 2});
    Leaf<float> y({3, 4});
    const Var a = x.on(tape);
    const Var b = y.on(tape);
    const Var first = tape.record(Sum{}, {tape.record(Multiply{}, {a, b}, a.shape())}, Shape{1});
    const Var second = tape.record(Sum{}, {tape.record(Scale{3}, {b}, b.shape())}, Shape{1});
    tape.backward(first);
    CHECK(x.slice == std::vector<float>{3, 4});
    tape.backward(second);
    CHECK(x.slice == std::vector<float>{0, 0});
    CHECK(y.slice == std::vector<float>{3, 3});
    tape.backward(first);
    CHECK(x.slice == std::vector<float>{3, 4});
    CHECK(y.slice == std::vector<float>{1, 2});
  }
  TEST_CASE("accumulate adds once more at every backward, zeroed stores from the second on") {
    Tape tape;
    Leaf<float> sum({1}, 1, 0.5F);
    Leaf<float> zeroed({1}, 1, 0.0F);
    const Var a = sum.on(tape, Grad::accumulate);
    const Var b = zeroed.on(tape, Grad::zeroed);
    const Var loss = tape.record(Add{}, {a, b}, Shape{1});
    for (int i = 1; i <= 3; ++i) {
      tape.backward(loss);
      CHECK(sum.slice[0] == 0.5F + static_cast<float>(i));
      CHECK(zeroed.slice[0] == 1);
    }
  }
  TEST_CASE("a row without gradient is exact zeros in overwrite, and left alone in accumulate and zeroed") {
    for (const Grad grad : {Grad::overwrite, Grad::accumulate, Grad::zeroed}) {
      // in zeroed mode the caller promises zeros; a mark shows that the row was not touched
      Tape tape;
      Leaf<float> x({0, 0, 0, 0}, 2, grad == Grad::overwrite ? kNaN : 0.25F);
      tape.backward(tape.record(EvenRows{}, {x.on(tape, grad)}, Shape{1}));
      const float row0 = grad == Grad::accumulate ? 5.25F : 5.0F;
      const float row1 = grad == Grad::overwrite ? 0.0F : 0.25F;
      CHECK(x.slice == std::vector<float>{row0, row0, row1, row1});
      if (grad == Grad::overwrite) CHECK_FALSE(std::signbit(x.slice[2]));
    }
  }
  TEST_CASE("from the second backward on, zeroed writes the zeros of rows that lost their gradient") {
    Tape tape;
    Leaf<float> x({0, 0}, 1, 0.0F);
    const Var v = x.on(tape, Grad::zeroed);
    const Var everywhere = tape.record(Sum{}, {v}, Shape{1});
    const Var even = tape.record(EvenRows{}, {v}, Shape{1});
    tape.backward(everywhere);
    CHECK(x.slice == std::vector<float>{1, 1});
    tape.backward(even);
    CHECK(x.slice == std::vector<float>{5, 0});
  }
  TEST_CASE("a slice that no node reaches is zeros in overwrite, and as it was in accumulate and zeroed") {
    Tape tape;
    Leaf<float> used({1});
    Leaf<float> fresh({1, 2}, 1, kNaN);
    Leaf<float> sum({1, 2}, 1, 3.0F);
    Leaf<float> zeroed({1, 2}, 1, 0.0F);
    Leaf<float> aside({1, 2}, 1, kNaN);  // read by a node that the loss does not need
    const Var v = used.on(tape);
    const Var other = fresh.on(tape);
    (void)sum.on(tape, Grad::accumulate);
    const Var third = zeroed.on(tape, Grad::zeroed);
    const Var loss = tape.record(Scale{}, {v}, Shape{1});
    (void)tape.record(Sum{}, {aside.on(tape)}, Shape{1});
    tape.backward(loss);
    CHECK(fresh.slice == std::vector<float>{0, 0});
    CHECK(aside.slice == std::vector<float>{0, 0});
    CHECK(sum.slice == std::vector<float>{3, 3});
    CHECK(zeroed.slice == std::vector<float>{0, 0});
    CHECK(tape.gradient_complete(other));
    // zeroed counts as overwrite now
    zeroed.slice = {8, 8};
    tape.backward(loss);
    CHECK(zeroed.slice == std::vector<float>{0, 0});
    CHECK(tape.gradient_complete(third));
  }
  TEST_CASE("a row that a node meets several times gets the sum, in every mode (B84)") {
    for (const Grad grad : {Grad::overwrite, Grad::accumulate, Grad::zeroed}) {
      Tape tape;
      Leaf<float> table({1, 2, 3}, 1, grad == Grad::overwrite ? kNaN : grad == Grad::zeroed ? 0.0F : 10.0F);
      const Var rows = tape.record(Gather{{1, 1, 0, 1}}, {table.on(tape, grad)}, Shape{4});
      tape.backward(tape.record(Sum{}, {rows}, Shape{1}));
      const float start = grad == Grad::accumulate ? 10.0F : 0.0F;
      CHECK(table.slice == std::vector<float>{start + 1, start + 3, start});
    }
  }
  TEST_CASE("slices with strides are written where they stand and nowhere else") {
    Tape tape;
    std::vector<float> value(24);
    for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<float>(i);
    std::vector<float> memory(60, -1.0F);
    const View x(value.data(), 3, 4, 8, 2);
    const MutableView dx(memory.data() + 1, 3, 4, 12, 3);
    tape.backward(tape.record(Sum{}, {tape.record(Scale{2}, {tape.input(x, dx)}, Shape{3, 4})}, Shape{1}));
    int written = 0;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const bool inside = i >= 1 && (i - 1) % 12 % 3 == 0 && (i - 1) / 12 < 3;
      CHECK(memory[i] == (inside ? 2.0F : -1.0F));
      written += inside ? 1 : 0;
    }
    CHECK(written == 12);
    // zeros too: a loss that does not reach it
    Leaf<float> other({1});
    tape.backward(tape.record(Scale{}, {other.on(tape)}, Shape{1}));
    CHECK(std::count(memory.begin(), memory.end(), 0.0F) == 12);
  }
}

TEST_SUITE("engine/tape seeds") {
  TEST_CASE("a seed may stand still, stride over a matrix, or run backwards (B77)") {
    const std::vector<float> pairs{1, -9, 2, -9, 3, -9};
    struct Case {
      View seed;
      std::array<float, 3> rows;
    };
    const std::array<Case, 4> cases{{{View(pairs.data(), 3, 1, 0), {1, 1, 1}},
                                     {View(pairs.data(), 3, 1, 2), {1, 2, 3}},
                                     {View(pairs.data() + 4, 3, 1, -2), {3, 2, 1}},
                                     {View(pairs.data(), 3, 1), {1, -9, 2}}}};
    for (const Case& one : cases) {
      Tape tape;
      Leaf<float> z(std::vector<float>(6, 0.0F), 2);
      const Var logp = tape.record(LogProb{}, {z.on(tape)}, Shape{3});
      tape.backward(logp, one.seed);
      for (std::size_t r = 0; r < 3; ++r) {
        CHECK(z.slice[2 * r] == 0.5F * one.rows[r]);
        CHECK(z.slice[2 * r + 1] == -0.5F * one.rows[r]);
      }
    }
  }
  TEST_CASE("each row's own upstream reaches its own gradient, and a row of 0 is exactly 0 whatever it holds (B78, B88)") {
    Tape tape;
    Leaf<float> z({1, 0, 0, 2, kNaN, kNaN, -1, 1}, 2);
    const Var logp = tape.record(LogProb{}, {z.on(tape)}, Shape{4});
    const std::vector<double> strided{1, 0, -2, 0, 0, 0, 0.5, 0};
    tape.backward(logp, View(strided.data(), 4, 1, 2));
    const auto expected = [&](std::size_t r) {
      const double p0 = 1 / (1 + std::exp(static_cast<double>(z.value[2 * r + 1]) - z.value[2 * r]));
      return strided[2 * r] * (1 - p0);
    };
    for (const std::size_t r : {0U, 1U, 3U}) {
      CHECK(z.slice[2 * r] == doctest::Approx(expected(r)).epsilon(2e-6));
      CHECK(z.slice[2 * r + 1] == doctest::Approx(-expected(r)).epsilon(2e-6));
    }
    CHECK(z.slice[4] == 0);
    CHECK(z.slice[5] == 0);
  }
  TEST_CASE("a seed of any float type, and of the loss's shape only") {
    Tape tape;
    Leaf<float> x({1, 2, 3, 4}, 2);
    const Var y = tape.record(Scale{1}, {x.on(tape)}, Shape{2, 2});
    const std::vector<BFloat16> seed{BFloat16(1), BFloat16(2), BFloat16(-4), BFloat16(0.5F)};
    tape.backward(y, View(seed.data(), 2, 2));
    CHECK(x.slice == std::vector<float>{1, 2, -4, 0.5F});
    const std::vector<int> ints(4);
    check_says(refusal([&] { tape.backward(y, View(ints.data(), 2, 2)); }), "a seed of the loss's shape");
    check_says(refusal([&] { tape.backward(y, View(seed)); }), "found [4, 1] of bf16");
    check_says(refusal([&] { tape.backward(y); }), "a [1, 1] loss, found [2, 2]");
    CHECK(x.slice == std::vector<float>{1, 2, -4, 0.5F});
  }
}

TEST_SUITE("engine/tape in place") {
  TEST_CASE("the gradient is written over the value, in its own dtype") {
    Tape tape;
    std::vector<float> z{0, 0, 2, 0};
    const Var v = tape.input_in_place(MutableView(z.data(), 2, 2));
    const Var logp = tape.record(LogProb{}, {v}, Shape{2});
    tape.backward(tape.record(Sum{}, {logp}, Shape{1}));
    CHECK(z[0] == 0.5F);
    CHECK(z[1] == -0.5F);
    CHECK(z[2] == doctest::Approx(1 / (1 + std::exp(2.0))).epsilon(2e-6));
    CHECK(tape.gradient_complete(v));

    std::vector<BFloat16> half{BFloat16(8), BFloat16(0), BFloat16(0), BFloat16(0)};
    Tape other;
    other.backward(other.record(LogProb{}, {other.input_in_place(MutableView(half.data(), 1, 4))}, Shape{1}));
    const double expected = 3 / (std::exp(8.0) + 3);  // 1 − p0, about 0.001: nothing is left of it in 1 − bf16(p0)
    CHECK(half[0].bits == BFloat16(static_cast<float>(expected)).bits);
  }
  TEST_CASE("a second backward is refused at once, and the gradient stays (B71)") {
    Tape tape;
    std::vector<float> z{0, 0};
    const Var logp = tape.record(LogProb{}, {tape.input_in_place(MutableView(z.data(), 1, 2))}, Shape{1});
    tape.backward(logp);
    check_says(refusal([&] { tape.backward(logp); }), "an in-place input whose gradient an earlier backward wrote over it");
    CHECK(z == std::vector<float>{0.5F, -0.5F});
    tape.clear();
    z = {0, 0};
    tape.backward(tape.record(LogProb{}, {tape.input_in_place(MutableView(z.data(), 1, 2))}, Shape{1}));
    CHECK(z == std::vector<float>{0.5F, -0.5F});
  }
  TEST_CASE(
      "a second reader, the same Var twice, and a node that may not write over its input are refused at record (B71)") {
    Tape tape;
    std::vector<float> z{0, 0};
    const Var v = tape.input_in_place(MutableView(z.data(), 1, 2));
    check_says(refusal([&] { (void)tape.record(Entropy{}, {v}, Shape{1}); }),
               "a node that can write its gradient over its input");
    const Var logp = tape.record(LogProb{}, {v}, Shape{1});
    check_says(refusal([&] { (void)tape.record(LogProb{}, {v}, Shape{1}); }), "a second reader of the input (Var 0)");
    std::vector<float> y{0, 0};
    const Var w = tape.input_in_place(MutableView(y.data(), 1, 2));
    check_says(refusal([&] { (void)tape.record(Twice{}, {w, w}, Shape{1}); }), "named twice");
    tape.backward(logp);
    CHECK(z == std::vector<float>{0.5F, -0.5F});
    CHECK(y == std::vector<float>{0, 0});
  }
  TEST_CASE("a node whose forward threw is no reader") {
    Tape tape;
    std::vector<float> z{0, 0};
    const Var v = tape.input_in_place(MutableView(z.data(), 1, 2));
    (void)refusal([&] { (void)tape.record(Throws{}, {v}, Shape{1}); });
    tape.backward(tape.record(LogProb{}, {v}, Shape{1}));
    CHECK(z == std::vector<float>{0.5F, -0.5F});
  }
  TEST_CASE("memory that will be written over is nobody else's value or slice (B71)") {
    Tape tape;
    std::vector<float> z{0, 0, 0, 0};
    std::vector<float> slice(4);
    (void)tape.input_in_place(MutableView(z.data(), 1, 3));
    check_says(refusal([&] { (void)tape.constant(View(z.data() + 2, 1)); }), "memory that overlaps the input (Var 0)");
    check_says(refusal([&] { (void)tape.input(View(z.data() + 2, 1), MutableView(slice.data(), 1)); }),
               "overlaps the input");
    check_says(refusal([&] { (void)tape.input_in_place(MutableView(z.data() + 1, 1, 2)); }), "input_in_place: expected");
    CHECK(tape.constant(View(z.data() + 3, 1)).rows() == 1);
  }
  TEST_CASE("integers, and f64 on a float tape, are not differentiated in place either") {
    Tape tape;
    std::vector<int> ints(2);
    std::vector<double> wide(2);
    check_says(refusal([&] { (void)tape.input_in_place(MutableView(ints)); }),
               "input_in_place: expected floating-point values");
    check_says(refusal([&] { (void)tape.input_in_place(MutableView(wide)); }), "record on TapeF64");
  }
}

TEST_SUITE("engine/tape refused inputs") {
  TEST_CASE("slices and values of other shapes and dtypes are refused, and the tape is as it was") {
    Tape tape;
    const std::vector<float> x(6);
    std::vector<float> dx(6);
    std::vector<double> wide(6);
    std::vector<BFloat16> narrow(6);
    std::vector<int> ints(6);
    const View value(x.data(), 3, 2);
    check_says(refusal([&] { (void)tape.input(value, MutableView(dx.data(), 2, 3)); }),
               "a gradient slice of the value's shape, [3, 2] of f32, found [2, 3]");
    check_says(refusal([&] { (void)tape.input(value, MutableView(wide.data(), 3, 2)); }),
               "a gradient slice of f32, found a slice of f64");
    check_says(refusal([&] { (void)tape.input(value, MutableView(narrow.data(), 3, 2)); }), "pass SliceRounding::allowed");
    check_says(
        refusal([&] { (void)tape.input(value, MutableView(ints.data(), 3, 2), Grad::overwrite, SliceRounding::allowed); }),
        "a slice of i32");
    check_says(refusal([&] { (void)tape.input(View(ints.data(), 3, 2), MutableView(dx.data(), 3, 2)); }),
               "floating-point values, found [3, 2] of i32");
    CHECK(tape.roots().empty());
    CHECK(tape.memory().nodes == 0);
  }
  TEST_CASE("f64 logits are refused by a float tape, which points to TapeF64, and taken as constants") {
    Tape tape;
    const std::vector<double> x(2);
    std::vector<float> dx(2);
    std::vector<double> wide(2);
    check_says(refusal([&] { (void)tape.input(View(x), MutableView(dx)); }), "record on TapeF64");
    check_says(refusal([&] { (void)tape.input(View(x), MutableView(wide)); }), "record on TapeF64");
    CHECK(tape.constant(View(x)).rows() == 2);
    TapeF64 right;
    CHECK(right.input(View(x), MutableView(wide)).rows() == 2);
  }
  TEST_CASE("the fp64 tape takes values of every float type, with slices of f64") {
    const std::vector<BFloat16> z{BFloat16(2), BFloat16(0)};
    std::vector<double> dz(2);
    TapeF64 tape;
    tape.backward(tape.record(LogProb{}, {tape.input(View(z.data(), 1, 2), MutableView(dz.data(), 1, 2))}, Shape{1}));
    CHECK(dz[0] == doctest::Approx(1 / (1 + std::exp(2.0))).epsilon(1e-12));
  }
  TEST_CASE("slices share no byte with a value, another slice or a constant") {
    Tape tape;
    std::vector<float> x(8);
    std::vector<float> dx(8);
    check_says(refusal([&] { (void)tape.input(View(x.data(), 4), MutableView(x.data(), 4)); }),
               "input_in_place writes the gradient over the value");
    check_says(refusal([&] { (void)tape.input(View(x.data(), 4), MutableView(x.data() + 3, 4)); }),
               "a slice apart from its value");
    (void)tape.input(View(x.data(), 4), MutableView(dx.data(), 4));
    (void)tape.constant(View(dx.data() + 6, 1));
    check_says(refusal([&] { (void)tape.input(View(x.data(), 3), MutableView(dx.data() + 3, 3)); }),
               "memory that overlaps the input (Var 0)");
    check_says(refusal([&] { (void)tape.input(View(x.data(), 4), MutableView(dx.data() + 4, 4)); }),
               "memory that overlaps the constant (Var 1)");
    check_says(refusal([&] { (void)tape.constant(View(dx.data() + 3, 2)); }), "overlaps the input (Var 0)");
    check_says(refusal([&] { (void)tape.input(View(dx.data() + 1, 2), MutableView(x.data() + 6, 2)); }),
               "overlaps the input (Var 0)");
    check_says(refusal([&] { (void)tape.input(View(dx.data() + 7, 1), MutableView(x.data() + 1, 1)); }),
               "overlaps the input (Var 0)");
    CHECK(tape.roots().size() == 2);
    // values may be shared
    CHECK(tape.input(View(x.data(), 2), MutableView(dx.data() + 4, 2)).rows() == 2);
    CHECK(tape.constant(View(x.data(), 4)).rows() == 4);
    // and after clear all is free again
    tape.clear();
    CHECK(tape.input(View(x.data(), 4), MutableView(dx.data() + 3, 4)).rows() == 4);
  }
  TEST_CASE("column ranges of one slice buffer are slices apart") {
    Tape tape;
    const std::vector<float> z(12, 0.0F);
    std::vector<float> dz(12, kNaN);
    Var sum;
    for (const auto& [first, last] : {std::pair<Index, Index>{0, 1}, {1, 3}, {3, 4}}) {
      const Var part =
          tape.input(View(z.data() + first, 3, last - first, 4), MutableView(dz.data() + first, 3, last - first, 4));
      const Var y = tape.record(Sum{}, {tape.record(Scale{static_cast<double>(last)}, {part}, part.shape())}, Shape{1});
      sum = sum ? tape.record(Add{}, {sum, y}, Shape{1}) : y;
    }
    tape.backward(sum);
    CHECK(dz == std::vector<float>{1, 3, 3, 4, 1, 3, 3, 4, 1, 3, 3, 4});
  }
  TEST_CASE("memory of another device is refused as value, slice and seed") {
    Tape tape;
    std::vector<float> x(2);
    std::vector<float> dx(2);
    const View on_cuda(x.data(), detail::Layout{2, 1, 1, 1, DType::f32, Device::cuda});
    const MutableView slice_on_cuda(dx.data(), detail::Layout{2, 1, 1, 1, DType::f32, Device::cuda});
    check_says(refusal<DeviceError>([&] { (void)tape.constant(on_cuda); }),
               "constant: expected memory of the tape's device, cpu, found a view of cuda");
    check_says(refusal<DeviceError>([&] { (void)tape.input(on_cuda, MutableView(dx)); }), "found a view of cuda");
    check_says(refusal<DeviceError>([&] { (void)tape.input(View(x), slice_on_cuda); }), "found a view of cuda");
    const Var v = tape.input(View(x), MutableView(dx));
    check_says(refusal<DeviceError>([&] { tape.backward(v, on_cuda); }), "backward: expected memory of the tape's device");
  }
}

TEST_SUITE("engine/tape narrow slices") {
  TEST_CASE("a 16-bit slice, where allowed, holds each real rounded once to nearest even") {
    Tape tape;
    // 1 + 2^-8 is a tie of bf16 between 1 and 1 + 2^-7; a hair more rounds up
    std::vector<float> factors{1 + 0x1p-8F, 1 + 0x1p-8F + 0x1p-20F, 1 + 3 * 0x1p-8F, -3.0F};
    std::vector<BFloat16> slice(4);
    Leaf<float> x({1, 1, 1, 1});
    const Var v = tape.input(View(x.value), MutableView(slice), Grad::overwrite, SliceRounding::allowed);
    const Var product = tape.record(Multiply{}, {v, tape.constant(factors)}, v.shape());
    tape.backward(tape.record(Sum{}, {product}, Shape{1}));
    CHECK(slice[0].bits == 0x3f80);
    CHECK(slice[1].bits == 0x3f81);
    CHECK(slice[2].bits == 0x3f82);
    CHECK(static_cast<float>(slice[3]) == -3);
  }
  TEST_CASE("several nodes round once each: the sum is formed from what the slice holds") {
    Tape tape;
    std::vector<Float16> slice{Float16(kNaN)};
    Leaf<float> x({1});
    const Var v = tape.input(View(x.value), MutableView(slice), Grad::overwrite, SliceRounding::allowed);
    const Var a = tape.record(Scale{2048}, {v}, Shape{1});
    const Var b = tape.record(Scale{1}, {v}, Shape{1});
    tape.backward(tape.record(Add{}, {a, b}, Shape{1}));
    CHECK(static_cast<float>(slice[0]) == 2048);  // 2049 is the tie between 2048 and 2050
  }
  TEST_CASE("a double gradient narrows to 16 bits without passing through a tie of fp32") {
    TapeF64 tape;
    std::vector<BFloat16> slice(1);
    const std::vector<double> x{1};
    const VarF64 v = tape.input(View(x), MutableView(slice), Grad::overwrite, SliceRounding::allowed);
    tape.backward(tape.record(Scale{1 + 0x1p-8 + 0x1p-40}, {v}, Shape{1}));
    CHECK(slice[0].bits == 0x3f81);
  }
}
