// SPDX-License-Identifier: Apache-2.0
// What one token of the negative log-likelihood gives. Host and device.
#pragma once

#include "engine/device.h"

namespace losstape {

struct NllFunctor {
  template <class T>
  LOSSTAPE_HOST_DEVICE T operator()(const T& logp) const {
    return -logp;
  }
};

}  // namespace losstape
