// SPDX-License-Identifier: Apache-2.0
// expect: no matching function for call to .*record
// An fp32 tape does not take an fp64 Var.
#include "engine/tape.h"

struct Copy {
  static constexpr auto name = "copy";
  void forward(auto& c) const { c.out(0).write(0, c.in(0)(0)); }
  void backward(auto& c) const { c.grad(0).write(0, c.dout(0)(0)); }
};

losstape::Var use(losstape::Tape& tape, losstape::VarF64 x) { return tape.record(Copy{}, {x}, losstape::Shape{1}); }
