// SPDX-License-Identifier: Apache-2.0
// expect: has no member named .save
// A plan runs no forward: memory is asked for in reserve alone.
#include "engine/tape.h"

struct Hoards {
  static constexpr auto name = "hoards";
  void forward(auto& c) const { c.save(losstape::f64, 8); }
  void backward(auto& c) const { c.grad(0).write(0, 0); }
};

losstape::Var use(losstape::Tape& tape, losstape::Var x) { return tape.record(Hoards{}, {x}, losstape::Shape{1}); }
