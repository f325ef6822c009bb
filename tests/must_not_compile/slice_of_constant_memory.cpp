// SPDX-License-Identifier: Apache-2.0
// expect: no matching function for call to .*MutableView
// Memory that may not be written is no slice.
#include "engine/view.h"

losstape::MutableView use(const float* data) { return losstape::MutableView(data, 3); }
