// SPDX-License-Identifier: Apache-2.0
// A tape as a table, for people.
#pragma once

#include <string>

#include "engine/tape.h"

namespace losstape {

// One line a root and a record: number, name, inputs, output shapes, bytes saved and of scratch. Allocates; not for a step's
// path.
template <class R>
[[nodiscard]] std::string print(const BasicTape<R>& tape);

}  // namespace losstape
