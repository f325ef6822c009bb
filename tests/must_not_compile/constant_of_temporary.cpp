// SPDX-License-Identifier: Apache-2.0
// expect: use of deleted function|no matching function for call to .*constant
// The tape keeps a view of a constant, not the constant.
#include <vector>

#include "engine/tape.h"

losstape::Var use(losstape::Tape& tape) { return tape.constant(std::vector<float>{1, 2, 3}); }
