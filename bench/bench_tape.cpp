// SPDX-License-Identifier: Apache-2.0
// What a node costs beyond its work: record, backward and clear of a chain of [1, 1] nodes, less the same work by hand.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <vector>

#include "engine/tape.h"
#include "ops/token_map.h"

namespace losstape {
namespace {

constexpr int kNodes = 1000;
// A repetition is far shorter than a scheduler's slice, so that most are not interrupted on a busy machine.
constexpr int kSteps = 3;
constexpr int kRepetitions = 301;

struct Scale {
  static constexpr auto name = "scale";
  float by;
  void forward(auto& c) const { c.out(0).write(0, by * c.in(0)(0)); }
  void backward(auto& c) const { c.grad(0).write(0, by * c.dout(0)(0)); }
};

struct Nanoseconds {
  double record = 0;
  double backward = 0;
  double clear = 0;
  [[nodiscard]] double all() const { return record + backward + clear; }
};

double now() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Medians, a node, of steps of kNodes nodes. The first step is not counted: it grows the arena.
template <class Link>
Nanoseconds chain(const Link& link) {
  Tape tape;
  const float x = 1;
  float dx = 0;
  std::array<std::vector<double>, 3> seen;
  for (int repetition = -1; repetition < kRepetitions; ++repetition) {
    std::array<double, 3> spent{};
    for (int step = 0; step < kSteps; ++step) {
      const double start = now();
      Var y = tape.input(View(&x, 1), MutableView(&dx, 1));
      for (int i = 0; i < kNodes; ++i) y = link(tape, y);
      const double recorded = now();
      tape.backward(y);
      const double walked = now();
      tape.clear();
      const double cleared = now();
      spent[0] += recorded - start;
      spent[1] += walked - recorded;
      spent[2] += cleared - walked;
    }
    if (repetition < 0) continue;
    for (std::size_t i = 0; i < spent.size(); ++i) seen[i].push_back(spent[i] / (kSteps * kNodes));
  }
  return {median(seen[0]), median(seen[1]), median(seen[2])};
}

// The arithmetic and the memory of such a chain without a tape: values kept forward, adjoints written backward.
Nanoseconds by_hand() {
  std::vector<float> value(kNodes + 1, 1.0F);
  std::vector<float> adjoint(kNodes + 1);
  const volatile float factor = 1.0F;
  std::vector<double> forward;
  std::vector<double> backward;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    double spent_forward = 0;
    double spent_backward = 0;
    for (int step = 0; step < kSteps; ++step) {
      const double start = now();
      for (std::size_t i = 0; i < kNodes; ++i) value[i + 1] = factor * value[i];
      const double middle = now();
      adjoint[kNodes] = 1;
      for (std::size_t i = kNodes; i > 0; --i) adjoint[i - 1] = factor * adjoint[i];
      const double end = now();
      spent_forward += middle - start;
      spent_backward += end - middle;
    }
    forward.push_back(spent_forward / (kSteps * kNodes));
    backward.push_back(spent_backward / (kSteps * kNodes));
  }
  return {median(forward), median(backward), 0};
}

void print(const char* what, const Nanoseconds& cost, const Nanoseconds& work) {
  std::printf("%-34s %8.1f %10.1f %7.1f %14.1f\n", what, cost.record, cost.backward, cost.clear, cost.all() - work.all());
}

int run() {
  std::printf("ns a node, [1, 1] columns, chains of %d, medians of %d repetitions of %d steps\n\n", kNodes, kRepetitions,
              kSteps);
  std::printf("%-34s %8s %10s %7s %14s\n", "", "record", "backward", "clear", "beyond work");
  const Nanoseconds work = by_hand();
  print("the same work by hand", work, work);
  print("a node: y = a * x", chain([](Tape& tape, Var x) { return tape.record(Scale{1}, {x}, Shape{1}); }), work);
  print("token_map: one column", chain([](Tape&, Var x) { return token_map([](auto a) { return a * 1.0; }, x); }), work);
  print("token_map: a column twice",
        chain([](Tape&, Var x) { return token_map([](auto a, auto b) { return 0.5 * (a + b); }, x, x); }), work);
  return 0;
}

}  // namespace
}  // namespace losstape

int main() { return losstape::run(); }
