// SPDX-License-Identifier: Apache-2.0
// expect: a node has a static name, forward\(auto& c\) and a const backward
// A node that cannot be differentiated is no node.
#include "engine/tape.h"

struct NoBackward {
  static constexpr auto name = "no_backward";
  void forward(auto& c) const { c.out(0).write(0, c.in(0)(0)); }
};

losstape::Var use(losstape::Tape& tape, losstape::Var x) { return tape.record(NoBackward{}, {x}, losstape::Shape{1}); }
