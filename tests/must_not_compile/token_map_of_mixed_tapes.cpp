// SPDX-License-Identifier: Apache-2.0
// expect: token_map takes Vars of one tape type
#include "ops/token_map.h"

auto use(losstape::Var x, losstape::VarF64 y) {
  return losstape::token_map([](auto a, auto b) { return a + b; }, x, y);
}
