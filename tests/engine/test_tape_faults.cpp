// SPDX-License-Identifier: Apache-2.0
// What goes wrong inside nodes: throws, forgotten gradients, unwritten rows, memory that nobody reserved.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/tape.h"
#include "tests/engine/nodes.h"
#include "tests/support/refusal.h"

using namespace losstape;
using namespace losstape::testing;

namespace {

const float kNaN = std::numeric_limits<float>::quiet_NaN();

// Saves, takes scratch, and throws where it is told to.
struct Throws {
  static constexpr auto name = "throws";
  std::function<void()> in_reserve = [] {};
  std::function<void()> in_forward = [] {};
  std::function<void()> in_backward = [] {};
  void reserve(auto& c) const {
    c.save(f64, 10);
    c.workspace(f32, 1000);
    in_reserve();
  }
  void forward(auto& c) const {
    c.out(0).write(0, c.in(0)(0));
    in_forward();
  }
  void backward(auto& c) const {
    c.grad(0).write(0, c.dout(0)(0));
    in_backward();
  }
};

// Gives its first row a gradient and says that the others have none; throws after that where it is told to.
struct FirstRow {
  static constexpr auto name = "first_row";
  const bool* armed;
  void forward(auto& c) const { c.out(0).write(0, c.in(0)(0)); }
  void backward(auto& c) const {
    const auto dx = c.grad(0);
    dx.write(0, c.dout(0)(0));
    for (Index r = 1; r < dx.rows(); ++r) dx.zero_row(r);
    if (*armed) throw std::runtime_error("gone");
  }
};

// The exception that is nested in an error, if there is one.
std::string nested_in(const std::exception& error) {
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& inner) {
    return inner.what();
  } catch (...) {
    return "no std::exception";
  }
  return "nothing";
}

struct State {
  std::size_t records;
  std::size_t roots;
  TapeMemory memory;
  bool operator==(const State& other) const {
    return records == other.records && roots == other.roots && memory.saved == other.memory.saved &&
           memory.columns == other.memory.columns && memory.nodes == other.memory.nodes;
  }
};

State state_of(const Tape& tape) { return {tape.records().size(), tape.roots().size(), tape.memory()}; }

// A column node whose forward and backward are given as functions of their contexts.
template <class Forward, class Backward>
struct Custom {
  static constexpr auto name = "custom";
  Forward on_forward;
  Backward on_backward;
  void forward(auto& c) const { on_forward(c); }
  void backward(auto& c) const { on_backward(c); }
};
template <class Forward, class Backward>
Custom(Forward, Backward) -> Custom<Forward, Backward>;

const auto copy_through = [](auto& c) {
  for (Index r = 0; r < c.in(0).rows(); ++r) c.out(0).write(r, c.in(0)(r));
};
const auto pass_back = [](auto& c) {
  for (Index r = 0; r < c.dout(0).rows(); ++r) c.grad(0).write(r, c.dout(0)(r));
};

struct Careless {
  static constexpr auto name = "careless";
  int what;
  void reserve(auto& c) const {
    c.save(f32, 2, 3);
    c.workspace(f64, 4);
  }
  void forward(auto& c) const {
    CHECK(c.saved(f32, 0).rows == 2);
    CHECK(c.saved(f32, 0).cols == 3);
    CHECK(c.workspace(f64, 0).size() == 4);
    if (what == 0) (void)c.saved(f32, 1);
    if (what == 1) (void)c.saved(f64, 0);
    if (what == 2) (void)c.workspace(f64, 1);
    if (what == 3) (void)c.workspace(bf16, 0);
    c.out(0).write(0, 0);
  }
  void backward(auto& c) const { c.grad(0).write(0, 0); }
};

struct Greedy {
  static constexpr auto name = "greedy";
  int pieces;
  Index rows = 1;
  void reserve(auto& c) const {
    for (int i = 0; i < pieces; ++i) c.save(f64, rows, rows);
  }
  void forward(auto& c) const { c.out(0).write(0, c.saved(f64, 7).rows == rows ? 1 : 0); }
  void backward(auto& c) const { c.grad(0).write(0, 0); }
};

struct Keeps {
  static constexpr auto name = "keeps";
  void reserve(auto& c) const {
    c.save(i64, c.rows());
    c.save(c.real, 1);
    c.workspace(f64, 64);
  }
  void forward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) {
      c.saved(i64, 0)(r) = r + 10;
      c.out(0).write(r, 0);
    }
    c.saved(c.real, 1)(0) = 0.5;
    for (Index i = 0; i < 64; ++i) c.workspace(f64, 0)(i) = -1;
  }
  void backward(auto& c) const {
    for (Index i = 0; i < 64; ++i) c.workspace(f64, 0)(i) = -2;
    for (Index r = 0; r < c.in(0).rows(); ++r) {
      c.grad(0).write(r, static_cast<double>(c.saved(i64, 0)(r)) * static_cast<double>(c.saved(c.real, 1)(0)));
    }
  }
};

struct Logarithm {
  static constexpr auto name = "logarithm";
  void forward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) c.out(0).write(r, std::log(c.in(0)(r)));
  }
  void backward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) c.grad(0).write(r, c.dout(0)(r) / c.in(0)(r));
  }
  const char* explain(Index row, auto& c) const { return c.in(0)(row) < 0 ? "the logarithm of a negative number" : nullptr; }
};

struct Finite {
  static constexpr auto name = "finite";
  void forward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) {
      if (!std::isfinite(c.in(0)(r))) throw UsageError({name, "finite values", c.cause_of(0, r), "", r});
      c.out(0).write(r, c.in(0)(r));
    }
  }
  void backward(auto& c) const { pass_back(c); }
};

}  // namespace

TEST_SUITE("engine/tape throws") {
  TEST_CASE("a throw in reserve or forward leaves the tape as it was, and usable") {
    Tape tape;
    Leaf<float> x({2});
    const Var v = x.on(tape);
    const Var y = tape.record(Scale{3}, {v}, Shape{1});
    const State before = state_of(tape);
    const auto fail = [] { throw std::runtime_error("no luck"); };
    for (int i = 0; i < 40; ++i) {  // often enough to cross segments of the list of Vars
      const auto error = refusal([&] {
        (void)tape.record(i % 2 == 0 ? Throws{.in_reserve = fail} : Throws{.in_forward = fail}, {y},
                          Outputs{{1}, {1000}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}});
      });
      CHECK(std::string(error.what()) ==
            "throws: expected forward to return, found an exception: no luck; the exception itself is nested in this one");
      CHECK(state_of(tape) == before);
    }
    const Var next = tape.record(Scale{5}, {y}, Shape{1});
    CHECK(next.index == y.index + 1);
    tape.backward(next);
    CHECK(x.slice[0] == 15);
  }
  TEST_CASE("the library's own errors pass as they are; what is no std::exception is nested too") {
    Tape tape;
    Leaf<float> x({2});
    const Var v = x.on(tape);
    const auto record = [&](std::function<void()> fail) {
      (void)tape.record(Throws{.in_forward = std::move(fail)}, {v}, Shape{1});
    };
    CHECK(std::string(refusal<CommError>([&] {
                        record([] { throw CommError({"join", "a", "b"}); });
                      }).what()) == "join: expected a, found b");
    try {
      record([] { throw std::out_of_range("row 7"); });
      FAIL("no error");
    } catch (const UsageError& error) {
      CHECK(nested_in(error) == "row 7");
    }
    try {
      record([] { throw 5; });
      FAIL("no error");
    } catch (const UsageError& error) {
      CHECK(nested_in(error) == "no std::exception");
      check_says(error, "throws: expected forward to return, found an exception that is no std::exception");
    }
  }
  TEST_CASE(
      "a throw in backward names the node, keeps the exception, fills half-written slices with NaN and spares the others") {
    bool armed = true;
    Tape tape;
    Leaf<float> reached({1, 2}, 1, 7.0F);
    Leaf<float> passed({1}, 1, 7.0F);
    Leaf<float> spared({1}, 1, 7.0F);
    const Var a = reached.on(tape);
    const Var b = passed.on(tape);
    const Var c = spared.on(tape);
    const Var early = tape.record(Sum{}, {a}, Shape{1});
    const Var middle = tape.record(Throws{.in_backward =
                                              [&] {
                                                if (armed) throw std::runtime_error("gone");
                                              }},
                                   {c}, Shape{1});
    const Var late = tape.record(Add{}, {middle, early}, Shape{1});
    const Var loss = tape.record(Add{}, {late, b}, Shape{1});
    const State before = state_of(tape);
    armed = false;
    tape.backward(loss);  // what an earlier one completed is complete no more
    for (const Var& input : {a, b, c}) CHECK(tape.gradient_complete(input));
    for (Leaf<float>* const leaf : {&reached, &passed, &spared}) leaf->slice.assign(leaf->slice.size(), 7.0F);
    armed = true;
    try {
      tape.backward(loss);
      FAIL("no error");
    } catch (const UsageError& error) {
      check_says(error, "throws: expected backward to return, found an exception: gone");
      CHECK(nested_in(error) == "gone");
    }
    CHECK(state_of(tape) == before);
    CHECK(std::isnan(passed.slice[0]));                // written before
    CHECK(std::isnan(spared.slice[0]));                // asked for by the node that threw
    CHECK(reached.slice == std::vector<float>{7, 7});  // nobody came so far
    for (const Var& input : {a, b, c}) CHECK_FALSE(tape.gradient_complete(input));
    armed = false;
    tape.backward(loss);
    CHECK(reached.slice == std::vector<float>{1, 1});
    CHECK(passed.slice[0] == 1);
    CHECK(spared.slice[0] == 1);
    for (const Var& input : {a, b, c}) CHECK(tape.gradient_complete(input));
  }
  TEST_CASE("after a failed backward zeroed no longer means zeros, and an in-place input is spent only if it was reached") {
    bool armed = true;
    const auto fail = [&] {
      if (armed) throw std::runtime_error("gone");
    };
    Tape tape;
    Leaf<float> zeroed({1, 2}, 1, 0.0F);
    std::vector<float> far{0, 0};
    std::vector<float> near{0, 0};
    const Var logp = tape.record(LogProb{}, {tape.input_in_place(MutableView(far.data(), 1, 2))}, Shape{1});
    const Var middle = tape.record(FirstRow{&armed}, {zeroed.on(tape, Grad::zeroed)}, Shape{1});
    const Var loss = tape.record(Add{}, {logp, middle}, Shape{1});
    (void)refusal([&] { tape.backward(loss); });
    CHECK(std::isnan(zeroed.slice[0]));
    CHECK(std::isnan(zeroed.slice[1]));
    CHECK(far == std::vector<float>{0, 0});
    armed = false;
    tape.backward(loss);
    CHECK(zeroed.slice == std::vector<float>{1, 0});
    CHECK(far == std::vector<float>{0.5F, -0.5F});

    armed = true;
    tape.clear();
    Leaf<float> single({1});
    const Var first = tape.record(Throws{.in_backward = fail}, {single.on(tape)}, Shape{1});
    const Var second = tape.record(LogProb{}, {tape.input_in_place(MutableView(near.data(), 1, 2))}, Shape{1});
    const Var both = tape.record(Add{}, {first, second}, Shape{1});
    (void)refusal([&] { tape.backward(both); });
    CHECK(std::isnan(near[0]));
    check_says(refusal([&] { tape.backward(both); }), "an in-place input whose gradient an earlier backward wrote over it");
  }
  TEST_CASE("a narrow slice of a failed backward is NaN too") {
    Tape tape;
    const std::vector<float> x{1};
    std::vector<Float16> slice{Float16(2)};
    const Var v = tape.input(View(x), MutableView(slice), Grad::overwrite, SliceRounding::allowed);
    const Var y = tape.record(Throws{.in_backward = [] { throw std::runtime_error("gone"); }}, {v}, Shape{1});
    (void)refusal([&] { tape.backward(y); });
    CHECK(std::isnan(static_cast<float>(slice[0])));
  }
  TEST_CASE("an error before the walk touches no slice and no mark of completeness") {
    Tape tape;
    Leaf<float> x({1, 2});
    const Var v = x.on(tape);
    tape.backward(tape.record(Sum{}, {v}, Shape{1}));
    x.slice = {4, 5};
    (void)refusal([&] { tape.backward(v); });
    (void)refusal([&] { tape.backward(tape.constant(View(x.value))); });
    CHECK(x.slice == std::vector<float>{4, 5});
    CHECK(tape.gradient_complete(v));
  }
}

TEST_SUITE("engine/tape misuse by nodes") {
  TEST_CASE("a wanted gradient that backward never asks for is an error with node and input, and nothing reads as done") {
    for (const Audit audit : {Audit::off, Audit::unwritten_rows}) {
      Tape tape({.audit = audit});
      Leaf<float> x({1});
      Leaf<float> y({1});
      const auto backward_of_first = [](auto& c) { c.grad(0).write(0, 1); };
      const Var a = x.on(tape);
      const Var b = y.on(tape);
      const Var loss = tape.record(Custom{copy_through, backward_of_first}, {a, b}, Shape{1});
      check_says(refusal([&] { tape.backward(loss); }),
                 "custom: expected backward to ask for every wanted gradient, found c.grad(1) never asked for");
      CHECK(std::isnan(x.slice[0]));
      CHECK(y.slice[0] == 99);
      CHECK_FALSE(tape.gradient_complete(b));
      // a constant in its place is nobody's loss
      const Var fine = tape.record(Custom{copy_through, backward_of_first}, {a, tape.constant(View(y.value))}, Shape{1});
      tape.backward(fine);
      CHECK(x.slice[0] == 1);
    }
  }
  TEST_CASE("a Var named twice must be asked for under both numbers") {
    Tape tape;
    Leaf<float> x({1});
    const Var a = x.on(tape);
    const Var loss = tape.record(Custom{copy_through, [](auto& c) { c.grad(1).write(0, 1); }}, {a, a}, Shape{1});
    check_says(refusal([&] { tape.backward(loss); }), "c.grad(0) never asked for");
  }
  TEST_CASE("c.grad(i) is the same slice however often it is asked for") {
    Tape tape;
    Leaf<float> x({1, 1, 1});
    const auto backward = [](auto& c) {
      CHECK_FALSE(c.grad(0).adds());
      for (Index r = 0; r < 3; ++r) c.grad(0).write(r, static_cast<double>(r) * c.dout(0)(r));
      CHECK_FALSE(c.grad(0).adds());
      CHECK(c.grad(0).beta() == 0);
    };
    const Var y = tape.record(Custom{copy_through, backward}, {x.on(tape)}, Shape{3});
    tape.backward(tape.record(Sum{}, {y}, Shape{1}));
    CHECK(x.slice == std::vector<float>{0, 1, 2});
  }
  TEST_CASE("inputs, outputs and adjoints that a node does not have are refused by number") {
    Tape tape;
    Leaf<float> x({1});
    const Var v = x.on(tape);
    const auto record = [&](auto forward) { (void)tape.record(Custom{forward, pass_back}, {v}, Shape{1}); };
    check_says(refusal([&] { record([](auto& c) { c.out(0).write(0, c.in(1)(0)); }); }),
               "custom: expected inputs 0 to n - 1 of n = 1, found input 1");
    check_says(refusal([&] { record([](auto& c) { c.out(1).write(0, 1); }); }), "found output 1");
    check_says(refusal([&] { record([](auto& c) { (void)c.base(2); }); }), "found input 2");
    check_says(refusal([&] { record([](auto& c) { (void)c.wants_grad(2); }); }), "found input 2");
    const auto backward = [&](auto wrong) { tape.backward(tape.record(Custom{copy_through, wrong}, {v}, Shape{1})); };
    check_says(refusal([&] { backward([](auto& c) { (void)c.dout(1); }); }), "found output 1");
    check_says(refusal([&] { backward([](auto& c) { (void)c.grad(1); }); }), "found input 1");
    check_says(refusal([&] { backward([](auto& c) { (void)c.out(1); }); }), "found output 1");
    CHECK_FALSE(tape.gradient_complete(v));
  }
  TEST_CASE("saved state and scratch are those of reserve: other numbers and other types are refused") {
    Tape tape;
    Leaf<float> x({1});
    const Var v = x.on(tape);
    const auto words = [&](int what) { return refusal([&] { (void)tape.record(Careless{what}, {v}, Shape{1}); }); };
    check_says(words(0), "careless: expected saved state 1 asked for in reserve, found 1 such pieces");
    check_says(words(1), "saved state 0 of the type that reserve named, found a type of 8 bytes instead of 4");
    check_says(words(2), "workspace 1 asked for in reserve");
    check_says(words(3), "a type of 2 bytes instead of 8");
    CHECK(tape.record(Careless{4}, {v}, Shape{1}).item() == 0);
  }
  TEST_CASE("a node may ask for 8 pieces of a kind, not for a ninth, and not for a size that overflows") {
    Tape tape;
    Leaf<float> x({1});
    const Var v = x.on(tape);
    CHECK(tape.record(Greedy{8}, {v}, Shape{1}).item() == 1);
    check_says(refusal([&] { (void)tape.record(Greedy{9}, {v}, Shape{1}); }),
               "greedy: expected at most 8 pieces of memory of a kind");
    check_says(refusal([&] {
                 (void)tape.record(Greedy{1, Index{1} << 40}, {v}, Shape{1});
               }),
               "a size in bytes that fits the address space");
    check_says(refusal([&] { (void)tape.record(Scale{}, {v}, Shape{-1}); }), "found [-1, 1]");
  }
  TEST_CASE("saved state lives from forward to every backward, and scratch is lent to one call") {
    Tape tape;
    Leaf<float> x({0, 0});
    const Var a = tape.record(Keeps{}, {x.on(tape)}, Shape{2});
    const Var b = tape.record(Keeps{}, {a}, Shape{2});
    const Var loss = tape.record(Sum{}, {b}, Shape{1});
    for (int i = 0; i < 2; ++i) {
      tape.backward(loss);
      CHECK(x.slice == std::vector<float>{5, 5.5F});
    }
    CHECK(tape.memory().saved == 2 * (64 + 64));
    CHECK(tape.memory().workspace == 512);
  }
}

TEST_SUITE("engine/audit") {
  TEST_CASE("a row of a slice left unwritten is found, with node, input and row") {
    const auto leaves_row_2 = [](auto& c) {
      for (Index r = 0; r < c.dout(0).rows(); ++r) {
        if (r != 2) c.grad(0).write(r, c.dout(0)(r));
      }
    };
    Tape tape({.audit = Audit::unwritten_rows});
    Leaf<float> x({1, 2, 3, 4});
    const Var v = x.on(tape);
    const Var loss = tape.record(Sum{}, {tape.record(Custom{copy_through, leaves_row_2}, {v}, v.shape())}, Shape{1});
    const auto error = refusal([&] { tape.backward(loss); });
    check_says(error, "custom: expected every row of the gradient of input 0 written, found a row left unwritten at row 2");
    CHECK(error.row() == 2);
    CHECK(std::isnan(x.slice[0]));
    CHECK_FALSE(tape.gradient_complete(v));
  }
  TEST_CASE("one element of a strided or 16-bit slice left unwritten is found too") {
    const auto leaves_one = [](auto& c) {
      for (Index r = 0; r < 3; ++r) {
        for (Index j = 0; j < 2; ++j) {
          if (r != 1 || j != 1) c.grad(0).write(r, j, 1);
        }
      }
    };
    const auto forward = [](auto& c) { c.out(0).write(0, c.in(0)(0)); };
    const std::vector<float> x(30);
    Tape tape({.audit = Audit::unwritten_rows});
    std::vector<float> strided(30);
    std::vector<BFloat16> brains(6);
    std::vector<Float16> halves(6);
    for (const MutableView& slice :
         {MutableView(strided.data(), 3, 2, 10, 3), MutableView(brains.data(), 3, 2), MutableView(halves.data(), 3, 2)}) {
      const View value(x.data(), 3, 2, slice.row_stride, slice.col_stride);
      const Var v = tape.input(value, slice, Grad::overwrite, SliceRounding::allowed);
      CHECK(refusal([&] { tape.backward(tape.record(Custom{forward, leaves_one}, {v}, Shape{1})); }).row() == 1);
      tape.clear();
    }
    TapeF64 wide({.audit = Audit::unwritten_rows});
    std::vector<double> doubles(6);
    const VarF64 v = wide.input(View(x.data(), 3, 2), MutableView(doubles.data(), 3, 2));
    CHECK(refusal([&] { wide.backward(wide.record(Custom{forward, leaves_one}, {v}, Shape{1})); }).row() == 1);
  }
  TEST_CASE("an adjoint between two nodes is audited like a slice") {
    const auto nothing_written = [](auto& c) { (void)c.grad(0); };
    Tape tape({.audit = Audit::unwritten_rows});
    Leaf<float> x({1, 2});
    const Var y = tape.record(Scale{}, {x.on(tape)}, Shape{2});
    const Var loss = tape.record(Sum{}, {tape.record(Custom{copy_through, nothing_written}, {y}, Shape{2})}, Shape{1});
    check_says(refusal([&] { tape.backward(loss); }), "custom: expected every row of the gradient of input 0 written");
  }
  TEST_CASE("an output left unwritten is found at record, and the tape is as it was") {
    Tape tape({.audit = Audit::unwritten_rows});
    Leaf<float> x({1, 2, 3});
    const Var v = x.on(tape);
    const auto forward = [](auto& c) {
      copy_through(c);
      c.out(1).write(0, 1);
      c.out(1).write(2, 1);
    };
    const auto error = refusal([&] { (void)tape.record(Custom{forward, pass_back}, {v}, Outputs{{3}, {3}}); });
    check_says(error, "custom: expected forward to write every element of output 1");
    CHECK(error.row() == 1);
    CHECK(tape.records().empty());
  }
  TEST_CASE("real NaNs of any payload are not taken for marks") {
    Tape tape({.audit = Audit::unwritten_rows});
    Leaf<float> x({1, 2, 3, 4});
    const std::vector<float> nans{kNaN, -kNaN, std::bit_cast<float>(0x7f800001U), std::bit_cast<float>(0x7fffffffU)};
    const Var v = x.on(tape);
    const Var loss = tape.record(Sum{}, {tape.record(Multiply{}, {v, tape.constant(nans)}, v.shape())}, Shape{1});
    tape.backward(loss);
    CHECK(tape.gradient_complete(v));
    for (const float g : x.slice) CHECK(std::isnan(g));
  }
  TEST_CASE("the audit changes no bit of a right gradient, in any mode") {
    for (const Grad grad : {Grad::overwrite, Grad::accumulate, Grad::zeroed}) {
      std::vector<std::vector<float>> found;
      for (const Audit audit : {Audit::off, Audit::unwritten_rows}) {
        Tape tape({.audit = audit});
        Leaf<float> z({0.3F, -1.7F, 2.2F, 0.1F}, 2, grad == Grad::accumulate ? 0.1F : 0.0F);
        const Var v = z.on(tape, grad);
        const Var sum =
            tape.record(Add{}, {tape.record(LogProb{}, {v}, Shape{2}), tape.record(Entropy{}, {v}, Shape{2})}, Shape{2});
        const Var loss = tape.record(Sum{}, {tape.record(Multiply{}, {sum, sum}, Shape{2})}, Shape{1});
        tape.backward(loss);
        tape.backward(loss);
        found.push_back(z.slice);
      }
      CHECK(found[0] == found[1]);
    }
  }
}

TEST_SUITE("engine/explain") {
  TEST_CASE("the cause of a value that is not finite is the first node that made it, in its own words") {
    Tape tape;
    const auto cause = [&](const Var& v) { return refusal([&] { (void)tape.record(Finite{}, {v}, v.shape()); }).found(); };
    Leaf<float> x({1, -1, 0});
    const Var logs = tape.record(Logarithm{}, {x.on(tape)}, Shape{3});
    const std::vector<float> ones{1, 1, 1};
    const Var far = tape.record(Scale{2}, {tape.record(Add{}, {tape.constant(ones), logs}, Shape{3})}, Shape{3});
    CHECK(cause(far) == "logarithm made it: the logarithm of a negative number");
    const std::vector<float> positive{1, 1, 0};
    CHECK(cause(tape.record(Logarithm{}, {tape.constant(positive)}, Shape{3})) == "logarithm made it");
    const std::vector<float> bad{1, kNaN};
    CHECK(contains(cause(tape.record(Scale{1}, {tape.constant(bad)}, Shape{2})), "the constant (Var "));
    Leaf<float> inf({std::numeric_limits<float>::infinity()});
    CHECK(contains(cause(tape.record(Scale{1}, {inf.on(tape)}, Shape{1})), "the input (Var "));
  }
}
