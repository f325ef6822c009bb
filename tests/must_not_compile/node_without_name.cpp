// SPDX-License-Identifier: Apache-2.0
// expect: a node has a static name, forward\(auto& c\) and a const backward
// Errors name the node.
#include "engine/tape.h"

struct Anonymous {
  void forward(auto& c) const { c.out(0).write(0, c.in(0)(0)); }
  void backward(auto& c) const { c.grad(0).write(0, c.dout(0)(0)); }
};

losstape::Var use(losstape::Tape& tape, losstape::Var x) { return tape.record(Anonymous{}, {x}, losstape::Shape{1}); }
