// SPDX-License-Identifier: Apache-2.0
// A node of one's own, and its gradient checked: max(0, margin − x)², element by element.
#include <algorithm>
#include <iostream>
#include <vector>

#include "engine/engine.h"
#include "ops/ops.h"

using namespace losstape;

struct SquaredHinge {
  static constexpr auto name = "squared_hinge";
  double margin;
  void forward(auto& c) const {
    const auto x = c.in(0);
    for (Index r = 0; r < x.rows(); ++r) c.out(0).write(r, gap(x(r)) * gap(x(r)));
  }
  void backward(auto& c) const {
    const auto x = c.in(0);
    for (Index r = 0; r < x.rows(); ++r) c.grad(0).write(r, -2 * gap(x(r)) * c.dout(0)(r));
  }
  double gap(double x) const { return std::max(0.0, margin - x); }
};

int main() {
  const std::vector<double> x0{-1, 0.2, 0.4, 2, 0.1};
  const std::vector<double> mask{1, 1, 0, 1, 1};

  const auto loss = [&](auto& tape, auto x) {
    const auto hinge = tape.record(SquaredHinge{.margin = 0.5}, {x}, x.shape());
    return masked_mean(hinge, tape.constant(mask));
  };
  const GradcheckReport report = gradcheck(loss, x0);  // fp64 against differences, then fp32 against fp64

  std::cout << "passed: " << (report ? "yes" : report.summary()) << "\n"
            << "entries checked: " << report.checked << "\n"
            << "error at most 1e-7 of the largest entry: " << (report.worst_relative_error <= 1e-7 ? "yes" : "no") << "\n"
            << "fp32 within its bound: " << (report.fp32_gap <= report.fp32_bound ? "yes" : "no") << "\n";
}

// Output:
// passed: yes
// entries checked: 5
// error at most 1e-7 of the largest entry: yes
// fp32 within its bound: yes
