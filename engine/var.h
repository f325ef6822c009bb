// SPDX-License-Identifier: Apache-2.0
// A Var names a value on a tape: a handle, with no memory of its own.
#pragma once

#include <cstdint>

#include "engine/dtype.h"

namespace losstape {

template <class R>
class BasicTape;

// A value's shape, and whether something may be differentiated through it. Metrics and argmax have no adjoint.
enum class Adjoint : unsigned char { yes, no };

struct Shape {
  Index rows = 0;
  Index cols = 1;
  Adjoint adjoint = Adjoint::yes;

  friend bool operator==(const Shape& a, const Shape& b) { return a.rows == b.rows && a.cols == b.cols; }
};

// A handle to a value of a tape. Good until the tape is cleared; an older one is found out, not followed.
// R is the tape's real type: float in production (Var), double for checks (VarF64).
template <class R>
class BasicVar {
 public:
  using Real = R;

  BasicVar() = default;
  BasicVar(BasicTape<R>* tape_of, std::uint32_t at, std::uint32_t age) : tape(tape_of), index(at), generation(age) {}
  // A Var that a node would have had, had its option been set: any use of it is an error that names the option.
  static BasicVar not_asked_for(const char* option) {
    BasicVar var;
    var.option = option;
    return var;
  }

  [[nodiscard]] explicit operator bool() const { return tape != nullptr; }
  [[nodiscard]] Index rows() const;
  [[nodiscard]] Index cols() const;
  [[nodiscard]] Shape shape() const;
  // The value of a [1, 1] Var, on the host. Errors: UsageError for another shape, or a Var of a cleared tape.
  [[nodiscard]] R item() const;

  BasicTape<R>* tape = nullptr;
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  const char* option = nullptr;
};

using Var = BasicVar<float>;
using VarF64 = BasicVar<double>;

// The outputs of one record, in order.
template <class R>
class VarList {
 public:
  VarList(BasicVar<R> first, std::uint32_t count) : first_(first), count_(count) {}

  [[nodiscard]] std::size_t size() const { return count_; }
  // Errors: UsageError past the end.
  [[nodiscard]] BasicVar<R> operator[](std::size_t k) const;

 private:
  BasicVar<R> first_;
  std::uint32_t count_;
};

}  // namespace losstape
