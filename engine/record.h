// SPDX-License-Identifier: Apache-2.0
// What the tape keeps of a Var and of a record. Private to the engine.
#pragma once

#include <cstdint>
#include <span>

#include "engine/grad_slice.h"
#include "engine/node.h"
#include "engine/view.h"

namespace losstape {

template <class R>
struct Recorded {
  BasicTape<R>* tape = nullptr;
  const detail::NodeTable<R>* table = nullptr;
  Recorded* previous = nullptr;  // in record order: the tape is this chain, walked from its end
  void* node = nullptr;
  std::span<const std::uint32_t> inputs;
  std::uint32_t first_output = 0;
  std::uint32_t outputs = 0;
  std::span<Reserved> saved;
  std::span<Reserved> workspace;
  std::uint64_t asked = 0;  // inputs whose slice this backward asked for, a bit each

  static constexpr std::size_t kMostInputs = 64;
};

namespace detail {

enum class VarKind : unsigned char { constant, input, output };

template <class R>
struct VarState {
  View value;
  MutableView slice;  // the gradient's memory; empty where none is wanted
  Recorded<R>* producer = nullptr;
  VarState* previous_root = nullptr;   // inputs and constants, the latest first
  VarState* previous_input = nullptr;  // inputs alone
  VarKind kind = VarKind::constant;
  Grad grad = Grad::overwrite;
  bool wants_grad = false;
  bool in_place = false;
  bool consumed = false;  // a node reads this in-place input already
  bool asked = false;     // in this backward: the slice may hold a part of its gradient
  bool written = false;   // in this backward
  bool complete = false;
  bool poisoned = false;        // a failed backward left NaN: zeroed no longer holds
  std::uint32_t backwards = 0;  // that ended well

  // What the next write to the slice meets.
  [[nodiscard]] Beta beta() const {
    if (written) return Beta::add;
    if (kind == VarKind::input && grad == Grad::accumulate) return Beta::add;
    if (kind == VarKind::input && grad == Grad::zeroed && backwards == 0 && !poisoned) return Beta::store_on_zeros;
    return Beta::store;
  }
};

}  // namespace detail
}  // namespace losstape
