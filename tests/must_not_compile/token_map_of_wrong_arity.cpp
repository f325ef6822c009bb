// SPDX-License-Identifier: Apache-2.0
// expect: the functor takes one argument for each column
#include "ops/token_map.h"

auto use(losstape::Var x) {
  return losstape::token_map([](auto a, auto b) { return a + b; }, x);
}
