// SPDX-License-Identifier: Apache-2.0
// Recording and the walk backwards, against derivatives done by hand.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/tape.h"
#include "tests/engine/nodes.h"
#include "tests/support/refusal.h"

using namespace losstape;
using namespace losstape::testing;

namespace {

// sin and cos of one column, [n, 1] each, and a metric without adjoint. Notes what its backward saw.
struct SinCos {
  static constexpr auto name = "sin_cos";
  std::string* seen;
  void forward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) {
      c.out(0).write(r, std::sin(c.in(0)(r)));
      c.out(1).write(r, std::cos(c.in(0)(r)));
    }
    c.out(2).write(0, 7);
  }
  void backward(auto& c) const {
    *seen += std::string("sin_cos:") + (c.dout(0) ? "0" : "-") + (c.dout(1) ? "1" : "-") + (c.dout(2) ? "2" : "-") + " ";
    for (Index r = 0; r < c.in(0).rows(); ++r) {
      double g = 0;
      if (c.dout(0)) g += c.dout(0)(r) * c.out(1)(r);
      if (c.dout(1)) g -= c.dout(1)(r) * c.out(0)(r);
      c.grad(0).write(r, g);
    }
  }
};

// Passes its column on and writes its letter down.
struct Named {
  static constexpr auto name = "named";
  char letter;
  std::string* order;
  void forward(auto& c) const { c.out(0).write(0, c.in(0)(0)); }
  void backward(auto& c) const {
    *order += letter;
    c.grad(0).write(0, c.dout(0)(0));
  }
};

// y = ½ (a + b), counting its backwards.
struct Mean {
  static constexpr auto name = "mean";
  int* backwards;
  void forward(auto& c) const { c.out(0).write(0, 0.5 * (static_cast<double>(c.in(0)(0)) + c.in(1)(0))); }
  void backward(auto& c) const {
    ++*backwards;
    c.grad(0).write(0, 0.5 * c.dout(0)(0));
    c.grad(1).write(0, 0.5 * c.dout(0)(0));
  }
};

struct SumOfAll {
  static constexpr auto name = "sum_of_all";
  void forward(auto& c) const {
    double sum = 0;
    for (std::size_t i = 0; i < c.inputs(); ++i) sum += c.in(i)(0);
    c.out(0).write(0, sum);
  }
  void backward(auto& c) const {
    for (std::size_t i = 0; i < c.inputs(); ++i) c.grad(i).write(0, static_cast<double>(i) * c.dout(0)(0));
  }
};

}  // namespace

TEST_SUITE("engine/tape") {
  TEST_CASE_TEMPLATE("forward runs at record, backward gives the derivative", R, float, double) {
    BasicTape<R> tape;
    Leaf<R> a({1, 2, -3});
    Leaf<R> b({4, 5, 6});
    const auto x = a.on(tape);
    const auto y = b.on(tape);
    const auto product = tape.record(Multiply{}, {x, y}, x.shape());
    CHECK(tape.value(product).template get<double>(2) == -18);
    const auto loss = tape.record(Sum{}, {tape.record(Scale{2}, {product}, product.shape())}, Shape{1});
    CHECK(loss.item() == 2 * (4 + 10 - 18));
    tape.backward(loss);
    CHECK(a.slice == std::vector<R>{8, 10, 12});
    CHECK(b.slice == std::vector<R>{2, 4, -6});
    CHECK(tape.gradient_complete(x));
  }
  TEST_CASE("a sum that is used twice hands each input its own gradient (B80)") {
    TapeF64 tape;
    Leaf<double> x({2});
    Leaf<double> y({3});
    const VarF64 a = x.on(tape);
    const VarF64 b = y.on(tape);
    const VarF64 s = tape.record(Add{}, {a, b}, Shape{1});
    tape.backward(tape.record(Divide{}, {a, s}, Shape{1}));
    CHECK(x.slice[0] == doctest::Approx(3.0 / 25).epsilon(1e-15));
    CHECK(y.slice[0] == doctest::Approx(-2.0 / 25).epsilon(1e-15));
  }
  TEST_CASE("a Var named twice by a node gets both gradients, in whatever order the node writes them (B80)") {
    for (const auto order :
         {Multiply::Order::first_input_first, Multiply::Order::last_input_first, Multiply::Order::row_by_row}) {
      for (const Grad grad : {Grad::overwrite, Grad::accumulate, Grad::zeroed}) {
        Tape tape;
        const float before = grad == Grad::zeroed ? 0.0F : 100.0F;
        Leaf<float> x({3, -1}, 1, before);
        const Var v = x.on(tape, grad);
        // through an output as well: its adjoint meets the same rule
        const Var w = tape.record(Scale{1}, {v}, v.shape());
        tape.backward(tape.record(Sum{}, {tape.record(Multiply{order}, {w, w}, w.shape())}, Shape{1}));
        tape.backward(tape.record(Sum{}, {tape.record(Multiply{order}, {v, v}, v.shape())}, Shape{1}));
        const float start = grad == Grad::accumulate ? 100.0F + 6 : 0.0F;  // accumulate also keeps the first backward's
        CHECK(x.slice[0] == start + 6);
        CHECK(x.slice[1] == (grad == Grad::accumulate ? 100.0F - 2 : 0.0F) - 2);
      }
    }
  }
  TEST_CASE(
      "log-prob and entropy of one buffer in two nodes add up, in either order, and leave the buffer as it was (B71, B72)") {
    const double p0 = 1 / (1 + std::exp(-2.0));
    const double h = -p0 * std::log(p0) - (1 - p0) * std::log(1 - p0);
    const double expected = (1 - p0) - p0 * (std::log(p0) + h);
    CHECK(expected == doctest::Approx(-0.090784).epsilon(1e-5));
    for (const bool entropy_first : {false, true}) {
      Tape tape;
      Leaf<float> z({2, 0}, 2);
      const std::vector<float> before = z.value;
      const Var logits = z.on(tape);
      Var logp;
      Var entropy;
      if (entropy_first) entropy = tape.record(Entropy{}, {logits}, Shape{1});
      logp = tape.record(LogProb{}, {logits}, Shape{1});
      if (!entropy_first) entropy = tape.record(Entropy{}, {logits}, Shape{1});
      CHECK(logp.item() == doctest::Approx(std::log(p0)).epsilon(1e-6));
      CHECK(entropy.item() == doctest::Approx(h).epsilon(1e-6));
      tape.backward(tape.record(Add{}, {logp, entropy}, Shape{1}));
      CHECK(z.slice[0] == doctest::Approx(expected).epsilon(1e-5));
      CHECK(z.slice[1] == doctest::Approx(-expected).epsilon(1e-5));
      CHECK(std::memcmp(before.data(), z.value.data(), 2 * sizeof(float)) == 0);
    }
  }
  TEST_CASE("a node with several outputs runs one backward, and sees no adjoint of an output that nobody used") {
    std::string seen;
    TapeF64 tape;
    Leaf<double> x({0.5, -1});
    const VarF64 v = x.on(tape);
    const auto both = tape.record(SinCos{&seen}, {v}, Outputs{v.shape(), v.shape(), {1, 1, Adjoint::no}});
    REQUIRE(both.size() == 3);
    const VarF64 loss = tape.record(Sum{}, {tape.record(Multiply{}, {both[0], both[1]}, v.shape())}, Shape{1});
    tape.backward(loss);
    CHECK(seen == "sin_cos:01- ");
    for (std::size_t r = 0; r < 2; ++r) CHECK(x.slice[r] == doctest::Approx(std::cos(2 * x.value[r])).epsilon(1e-14));
    seen.clear();
    tape.backward(tape.record(Sum{}, {both[1]}, Shape{1}));
    CHECK(seen == "sin_cos:-1- ");
    CHECK(x.slice[0] == doctest::Approx(-std::sin(0.5)).epsilon(1e-14));
    CHECK_FALSE(tape.wants_grad(both[2]));
    check_says(refusal([&] { tape.backward(both[2]); }), "a loss that depends on an input");
    check_says(refusal([&] { (void)both[3]; }), "an output below 3, found output 3");
  }
  TEST_CASE("what depends on a metric alone is not differentiated") {
    std::string seen;
    TapeF64 tape;
    Leaf<double> x({0.5});
    const auto outputs = tape.record(SinCos{&seen}, {x.on(tape)}, Outputs{{1}, {1}, {1, 1, Adjoint::no}});
    const VarF64 scaled = tape.record(Scale{2}, {outputs[2]}, Shape{1});
    CHECK(scaled.item() == 14);
    CHECK_FALSE(tape.wants_grad(scaled));
    const VarF64 mixed = tape.record(Add{}, {scaled, outputs[0]}, Shape{1});
    tape.backward(mixed);
    CHECK(x.slice[0] == doctest::Approx(std::cos(0.5)).epsilon(1e-15));
  }
  TEST_CASE("nodes run backwards in the opposite order of recording, once each, and only those that the loss needs") {
    std::string order;
    Tape tape;
    Leaf<float> x({1});
    const Var v = x.on(tape);
    const auto named = [&](char letter, const Var& in) { return tape.record(Named{letter, &order}, {in}, Shape{1}); };
    const Var a = named('a', v);
    const Var b = named('b', a);
    const Var c = named('c', a);
    (void)named('d', c);
    const Var sum = tape.record(Add{}, {b, c}, Shape{1});
    (void)named('e', sum);
    tape.backward(sum);
    CHECK(order == "cba");
    CHECK(x.slice[0] == 2);
    order.clear();
    tape.backward(b);
    CHECK(order == "ba");
    CHECK(x.slice[0] == 1);
  }
  TEST_CASE("sharing is linear in the nodes, not in the paths: 60 doublings have 2^60 paths and run 60 nodes") {
    int backwards = 0;
    TapeF64 tape;
    Leaf<double> x({0.75});
    VarF64 y = x.on(tape);
    for (int i = 0; i < 60; ++i) y = tape.record(Mean{&backwards}, {y, y}, Shape{1});
    CHECK(y.item() == 0.75);
    tape.backward(y);
    CHECK(backwards == 60);
    CHECK(x.slice[0] == 1);
  }
  TEST_CASE("a chain of 100 000 nodes is recorded, differentiated and cleared without recursion") {
    int backwards = 0;
    TapeF64 tape;
    Leaf<double> x({3});
    for (int step = 0; step < 2; ++step) {
      const VarF64 leaf = x.on(tape);
      VarF64 y = leaf;
      for (int i = 0; i < 100'000; ++i) y = tape.record(Mean{&backwards}, {y, leaf}, Shape{1});
      tape.backward(y);
      CHECK(x.slice[0] == 1);  // ½ + ¼ + … of the leaf and the rest through the chain: exact in fp64
      tape.clear();
    }
    CHECK(backwards == 200'000);
  }
  TEST_CASE("no rows at all are a legal column: nodes that loop over rows ask for nothing and are not blamed") {
    for (const Audit audit : {Audit::off, Audit::unwritten_rows}) {
      Tape tape({.audit = audit});
      Leaf<float> none({});
      const Var v = none.on(tape);
      const Var product = tape.record(Multiply{}, {v, v}, v.shape());
      const Var loss = tape.record(Sum{}, {product}, Shape{1});
      CHECK(loss.item() == 0);
      tape.backward(loss);
      CHECK(tape.gradient_complete(v));
    }
  }
  TEST_CASE("a constant never gets a gradient, and a node's slice of it is empty") {
    Tape tape;
    Leaf<float> x({2});
    const std::vector<float> two{5};
    const Var c = tape.constant(two);
    CHECK_FALSE(tape.wants_grad(c));
    tape.backward(tape.record(Multiply{}, {c, x.on(tape)}, Shape{1}));  // writes grad(0) without asking whether it is there
    CHECK(two[0] == 5);
    CHECK(x.slice[0] == 5);
    const Var product = tape.record(Multiply{}, {c, c}, Shape{1});
    CHECK_FALSE(tape.wants_grad(product));
    CHECK(product.item() == 25);
    check_says(refusal([&] { tape.backward(product); }), "inputs are differentiated, constants and metrics are not");
  }
  TEST_CASE("constants of every type, order and stride are read as the tape's real") {
    TapeF64 tape;
    const std::vector<int> ints{1, 2, 3};
    const std::vector<BFloat16> brains{BFloat16(1.5F), BFloat16(-2), BFloat16(0)};
    const std::vector<std::uint8_t> mask{1, 0, 1};
    const std::vector<double> one{0.25};
    for (const View& view :
         {View(ints), View(brains), View(mask), View(one.data(), 3, 1, 0), View(ints.data() + 2, 3, 1, -1)}) {
      const VarF64 y = tape.record(Scale{2}, {tape.constant(view)}, Shape{3});
      for (Index r = 0; r < 3; ++r) CHECK(tape.value(y).get<double>(r) == 2 * view.get<double>(r));
    }
    Tape narrow;
    const std::vector<double> wide{1e-3};
    CHECK(narrow.record(Scale{1}, {narrow.constant(wide)}, Shape{1}).item() == 1e-3F);
  }
  TEST_CASE("an input may itself be the loss: its gradient is the seed") {
    Tape tape;
    Leaf<float> x({2, 3});
    Leaf<float> other({1});
    const Var v = x.on(tape);
    (void)other.on(tape);
    const std::vector<float> seed{5, 7};
    tape.backward(v, View(seed));
    CHECK(x.slice == std::vector<float>{5, 7});
    CHECK(other.slice[0] == 0);
  }
  TEST_CASE("a node may have 64 inputs and 40 outputs, and one more of either is refused") {
    TapeF64 tape;
    std::vector<Leaf<double>> leaves(65, Leaf<double>({1}));
    std::vector<VarF64> vars;
    for (auto& leaf : leaves) vars.push_back(leaf.on(tape));
    check_says(refusal([&] { (void)tape.record(SumOfAll{}, std::span<const VarF64>(vars), Outputs{{1}}); }),
               "at most 64 inputs, found 65");
    vars.pop_back();
    const VarF64 sum = tape.record(SumOfAll{}, std::span<const VarF64>(vars), Outputs{{1}})[0];
    CHECK(sum.item() == 64);
    tape.backward(sum);
    for (std::size_t i = 0; i < 64; ++i) CHECK(leaves[i].slice[0] == static_cast<double>(i));
    CHECK(leaves[64].slice[0] == 0);
    Outputs outputs{};
    for (int k = 0; k < 40; ++k) outputs.add({1});
    CHECK(outputs.shapes().size() == 40);
    check_says(refusal([&] { outputs.add({1}); }), "at most 40 outputs");
  }
}

TEST_SUITE("engine/tape Vars") {
  TEST_CASE("a Var of another tape, of an earlier step, an empty one and one not asked for are refused in words") {
    Tape tape;
    Tape other;
    Leaf<float> x({1});
    Leaf<float> y({1});
    const Var mine = x.on(tape);
    const Var theirs = y.on(other);
    check_says(refusal([&] { (void)tape.record(Add{}, {mine, theirs}, Shape{1}); }), "add: expected Vars of one tape");
    check_says(refusal([&] { (void)tape.record(Scale{}, {Var()}, Shape{1}); }),
               "scale: expected a Var of this tape, found an empty Var");
    const Var off = Var::not_asked_for(".entropy");
    check_says(refusal([&] { (void)tape.record(Scale{}, {off}, Shape{1}); }), "set .entropy in the node's options");
    check_says(refusal([&] { (void)off.rows(); }), "set .entropy in the node's options");
    check_says(refusal([&] { (void)off.item(); }), ".entropy");
    check_says(refusal([&] { (void)Var().cols(); }), "an empty Var");
    check_says(refusal([&] { (void)tape.value(theirs); }), "a Var of another tape");
    check_says(refusal([&] { tape.backward(off); }), ".entropy");
    CHECK_FALSE(static_cast<bool>(off));
    tape.clear();
    check_says(refusal([&] { (void)tape.record(Scale{}, {mine}, Shape{1}); }), "a Var from before tape.clear()");
    check_says(refusal([&] { (void)mine.item(); }), "a Var from before tape.clear()");
    check_says(refusal([&] { (void)tape.gradient_complete(mine); }), "a Var from before tape.clear()");
    check_says(refusal([&] { tape.backward(mine); }), "a Var from before tape.clear()");
  }
  TEST_CASE("a Var of a cleared step is found out although a new one stands in its place") {
    Tape tape;
    Leaf<float> x({1});
    const Var old = x.on(tape);
    tape.clear();
    const Var now = x.on(tape);
    CHECK(now.index == old.index);
    (void)refusal([&] { (void)old.rows(); });
    CHECK(now.rows() == 1);
  }
  TEST_CASE("item reads a [1, 1] value and nothing else") {
    Tape tape;
    Leaf<float> x({1, 2});
    check_says(refusal([&] { (void)x.on(tape).item(); }), "item: expected a [1, 1] Var, found [2, 1]");
  }
  TEST_CASE("gradient_complete is a question about an input") {
    Tape tape;
    Leaf<float> x({1});
    const Var v = x.on(tape);
    const Var y = tape.record(Scale{}, {v}, Shape{1});
    CHECK_FALSE(tape.gradient_complete(v));
    tape.backward(y);
    CHECK(tape.gradient_complete(v));
    check_says(refusal([&] { (void)tape.gradient_complete(y); }), "expected an input");
  }
}
