// SPDX-License-Identifier: Apache-2.0
// expect: use of deleted function .*View::View\(std::vector
// A view of a temporary vector would dangle.
#include <vector>

#include "engine/view.h"

losstape::View dangling() { return losstape::View(std::vector<float>(3)); }
