// SPDX-License-Identifier: Apache-2.0
// expect: a node has a static name, forward\(auto& c\) and a const backward
// A backward that changes its node could not run twice.
#include "engine/tape.h"

struct Changes {
  static constexpr auto name = "changes";
  void forward(auto& c) const { c.out(0).write(0, c.in(0)(0)); }
  void backward(auto& c) { c.grad(0).write(0, ++calls); }
  int calls = 0;
};

losstape::Var use(losstape::Tape& tape, losstape::Var x) { return tape.record(Changes{}, {x}, losstape::Shape{1}); }
