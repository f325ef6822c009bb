// SPDX-License-Identifier: Apache-2.0
// What a step holds, what it asks the system for, and who is destroyed when.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/print.h"
#include "engine/tape.h"
#include "tests/engine/nodes.h"
#include "tests/support/allocations.h"
#include "tests/support/refusal.h"

using namespace losstape;
using namespace losstape::testing;

namespace {

// A column of squares, as a recipe.
struct Squares {
  using IsColumnRecipe = void;
  Index count;
  [[nodiscard]] Index rows() const { return count; }
  double operator()(Index r) const { return static_cast<double>(r * r); }
};

struct Scratchy {
  static constexpr auto name = "scratchy";
  void reserve(auto& c) const {
    c.save(f64, c.rows(), 2);
    c.workspace(f32, 100, 10);
  }
  void forward(auto& c) const {
    c.pool().for_ranges(c.in(0).rows(), [&](Index begin, Index end, int) {
      for (Index r = begin; r < end; ++r) {
        c.saved(f64, 0)(r, 1) = c.in(0)(r);
        c.out(0).write(r, c.in(0)(r));
      }
    });
  }
  void backward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) c.grad(0).write(r, c.dout(0)(r));
  }
};

// Counts its copies that are alive.
struct Counted {
  static constexpr auto name = "counted";
  int* alive;
  int* destroyed;
  bool fails = false;
  Counted(int* living, int* dead, bool throws = false) : alive(living), destroyed(dead), fails(throws) { ++*alive; }
  Counted(Counted&& other) noexcept : alive(other.alive), destroyed(other.destroyed), fails(other.fails) { ++*alive; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  Counted& operator=(Counted&&) = delete;
  ~Counted() {
    --*alive;
    ++*destroyed;
  }
  void forward(auto& c) const {
    if (fails) throw UsageError({"counted", "a", "b"});
    c.out(0).write(0, c.in(0)(0));
  }
  void backward(auto& c) const { c.grad(0).write(0, c.dout(0)(0)); }
};

struct Stubborn {
  static constexpr auto name = "stubborn";
  int* alive;
  explicit Stubborn(int* living) : alive(living) { ++*alive; }
  Stubborn(Stubborn&& other) : alive(other.alive) { throw std::runtime_error("I stay"); }
  Stubborn(const Stubborn&) = delete;
  Stubborn& operator=(const Stubborn&) = delete;
  Stubborn& operator=(Stubborn&&) = delete;
  ~Stubborn() { --*alive; }
  void forward(auto& c) const { c.out(0).write(0, 0); }
  void backward(auto& c) const { c.grad(0).write(0, 0); }
};

struct alignas(64) Aligned {
  static constexpr auto name = "aligned";
  double values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  void forward(auto& c) const { c.out(0).write(0, reinterpret_cast<std::uintptr_t>(this) % 64 == 0 ? values[7] : -1); }
  void backward(auto& c) const { c.grad(0).write(0, 0); }
};

}  // namespace

TEST_SUITE("engine/tape memory") {
  TEST_CASE("from the second step on nothing is allocated: record, forward, backward, clear, and smaller steps") {
    for (const int threads : {1, 3}) {
      Tape tape({.threads = threads});
      std::vector<float> z(600, 0.5F);
      std::vector<float> dz(600);
      std::vector<float> x(300, 1.0F);
      std::vector<float> dx(300);
      const auto step = [&](Index rows, int chain) {
        const Var logits = tape.input(View(z.data(), rows, 2), MutableView(dz.data(), rows, 2));
        const Var other = tape.input(View(x.data(), rows), MutableView(dx.data(), rows), Grad::accumulate);
        const Var weights = tape.constant(Squares{rows});
        Var y = tape.record(LogProb{}, {logits}, Shape{rows});
        y = tape.record(Add{}, {y, tape.record(Entropy{}, {logits}, Shape{rows})}, Shape{rows});
        y = tape.record(Multiply{}, {tape.record(Add{}, {y, other}, Shape{rows}), weights}, Shape{rows});
        for (int i = 0; i < chain; ++i) y = tape.record(Scratchy{}, {y}, Shape{rows});
        const Var loss = tape.record(Sum{}, {y}, Shape{1});
        tape.backward(loss);
        tape.backward(loss);
        const float value = loss.item();
        tape.clear();
        return value;
      };
      CHECK(allocations_in([&] { (void)step(300, 40); }) > 0);
      CHECK(allocations_in([&] { (void)step(300, 40); }) == 0);
      CHECK(allocations_in([&] {
              (void)step(7, 40);
              (void)step(300, 1);
              (void)step(0, 0);
              (void)step(300, 40);
            }) == 0);
    }
  }
  TEST_CASE("a step of many small nodes allocates nothing the second time either") {
    Tape tape;
    Leaf<float> x({1});
    const auto step = [&] {
      Var y = x.on(tape);
      for (int i = 0; i < 5000; ++i) y = tape.record(Scale{1}, {y}, Shape{1});
      tape.backward(y);
      tape.clear();
    };
    step();
    CHECK(allocations_in(step) == 0);
  }
  TEST_CASE("an error costs allocations, the next good step none") {
    Tape tape;
    Leaf<float> x({1});
    int alive = 0;
    int destroyed = 0;
    const auto step = [&](bool fails) {
      const Var v = x.on(tape);
      if (fails) (void)refusal([&] { (void)tape.record(Counted(&alive, &destroyed, true), {v}, Shape{1}); });
      tape.backward(tape.record(Counted(&alive, &destroyed), {v}, Shape{1}));
      tape.clear();
    };
    step(false);
    step(true);
    CHECK(allocations_in([&] { step(false); }) == 0);
  }
  TEST_CASE("a destructor allocates nothing: a tape that grew in its last step just goes") {
    Leaf<float> x({1});
    auto tape = std::make_unique<Tape>();
    Var y = x.on(*tape);
    for (int i = 0; i < 5000; ++i) y = tape->record(Scale{1}, {y}, Shape{1});
    CHECK(allocations_in([&] { tape.reset(); }) == 0);
  }
  TEST_CASE("bytes are those of the pieces: columns with and without adjoint, saved state, scratch of the largest node") {
    Tape tape;
    Leaf<float> x(std::vector<float>(40, 1.0F));
    const Var v = x.on(tape);
    CHECK(tape.memory().columns == 0);  // the caller's memory is the caller's
    const Var c = tape.constant(Squares{40});
    CHECK(tape.memory().columns == 192);  // 160 bytes in pieces of 64
    (void)tape.record(Scale{1}, {c}, Shape{40});
    CHECK(tape.memory().columns == 384);
    (void)tape.record(Scratchy{}, {v}, Shape{40});
    CHECK(tape.memory().columns == 384 + 2 * 192);
    CHECK(tape.memory().saved == 640);
    CHECK(tape.memory().workspace == 4032);  // 4000 bytes
    tape.clear();
    CHECK(tape.memory().columns == 0);
    CHECK(tape.memory().saved == 0);
    CHECK(tape.memory().nodes == 0);
  }
  TEST_CASE("a node is destroyed once: by clear, by the tape's end, or at once where its forward throws") {
    Leaf<float> x({1});
    int alive = 0;
    int destroyed = 0;
    {
      Tape tape;
      const Var v = x.on(tape);
      for (int i = 0; i < 3; ++i) (void)tape.record(Counted(&alive, &destroyed), {v}, Shape{1});
      CHECK(alive == 3);
      (void)refusal([&] { (void)tape.record(Counted(&alive, &destroyed, true), {v}, Shape{1}); });
      CHECK(alive == 3);
      tape.clear();
      CHECK(alive == 0);
      tape.clear();
      CHECK(alive == 0);
      (void)tape.record(Counted(&alive, &destroyed), {x.on(tape)}, Shape{1});
      CHECK(alive == 1);
    }
    CHECK(alive == 0);
  }
  TEST_CASE("a node whose move into the tape throws was never there") {
    int alive = 0;
    Tape tape;
    Leaf<float> x({1});
    const Var v = x.on(tape);
    CHECK_THROWS((void)tape.record(Stubborn(&alive), {v}, Shape{1}));
    CHECK(alive == 0);
    CHECK(tape.records().empty());
  }
  TEST_CASE("a recipe that throws leaves the tape as it was") {
    struct Broken {
      using IsColumnRecipe = void;
      [[nodiscard]] Index rows() const { return 100; }
      double operator()(Index r) const {
        if (r == 50) throw std::runtime_error("row 50");
        return 0;
      }
    };
    Tape tape;
    CHECK_THROWS_AS((void)tape.constant(Broken{}), std::runtime_error);
    CHECK(tape.memory().columns == 0);
    CHECK(tape.roots().empty());
  }
  TEST_CASE("a node may be as strictly aligned as a cache line") {
    Tape tape;
    Leaf<float> x({1});
    const Var v = x.on(tape);
    CHECK(tape.record(Aligned{}, {v}, Shape{1}).item() == 8);
    CHECK(tape.record(Aligned{}, {v, v, v}, Shape{1}).item() == 8);
  }
}

TEST_SUITE("engine/tape threads") {
  TEST_CASE("8 threads, each with its own tape and slice, lose no update (B84)") {
    std::vector<float> slices(8 * 16);  // a cache line each
    const float value = 3;
    Pool pool(2);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        Tape tape({.pool = &pool});
        for (int i = 0; i < 1000; ++i) {
          const Var x = tape.input(View(&value, 1), MutableView(&slices[16 * t], 1), Grad::accumulate);
          tape.backward(tape.record(Scratchy{}, {x}, Shape{1}));
          tape.clear();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    float sum = 0;
    for (std::size_t t = 0; t < 8; ++t) sum += slices[16 * t];
    CHECK(sum == 8000);
  }
  TEST_CASE("a tape's pool is its own or the caller's") {
    Pool pool(3);
    const Tape shared({.pool = &pool});
    CHECK(&shared.pool() == &pool);
    const Tape own({.threads = 2});
    CHECK(own.pool().threads() == 2);
    (void)refusal([] { Tape tape({.threads = -1}); });
  }
}

TEST_SUITE("engine/print") {
  TEST_CASE("a tape is a table of its roots and records") {
    Tape tape;
    std::vector<float> z(6);
    std::vector<float> dz(6);
    std::vector<BFloat16> w(2);
    const std::vector<int> mask(3);
    const Var logits = tape.input(View(z.data(), 3, 2), MutableView(dz.data(), 3, 2), Grad::accumulate);
    (void)tape.input_in_place(MutableView(w));
    const Var c = tape.constant(mask);
    const Var logp = tape.record(LogProb{}, {logits}, Shape{3});
    const Var kept = tape.record(Scratchy{}, {c}, Shape{3});
    const auto list = tape.record(Multiply{}, {logp, kept}, Outputs{{3}, {3, 1, Adjoint::no}, {3, 1, Adjoint::no}});
    (void)list;
    CHECK(print(tape) ==
          "var  node               inputs  shapes (' has an adjoint)  saved  scratch\n"
          "%0   input, accumulate          [3, 2] f32\n"
          "%1   input in place             [2, 1] bf16\n"
          "%2   constant                   [3, 1] i32\n"
          "%3   log_prob           %0      [3, 1]'                    24     0\n"
          "%4   scratchy           %2      [3, 1]                     48     4000\n"
          "%5   multiply           %3 %4   [3, 1]' + 2 x [3, 1]       0      0\n");
  }
  TEST_CASE("an empty tape prints its head alone") {
    CHECK(print(TapeF64()) == "var  node  inputs  shapes (' has an adjoint)  saved  scratch\n");
  }
}
