// SPDX-License-Identifier: Apache-2.0
// expect: success
// The positive control: were the include path or the flags wrong, this would fail too.
#include <vector>

#include "engine/view.h"

losstape::View view_of(const std::vector<float>& column) { return losstape::View(column); }
