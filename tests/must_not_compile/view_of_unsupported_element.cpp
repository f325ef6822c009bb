// SPDX-License-Identifier: Apache-2.0
// expect: no matching function for call to .*View::View\(const unsigned int\*
// Unsigned numbers are no element type: an index of -100 must stay one.
#include "engine/view.h"

losstape::View use(const unsigned* data) { return losstape::View(data, 3); }
