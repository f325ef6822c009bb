// SPDX-License-Identifier: Apache-2.0
// expect: no matching function for call to .*MutableView
// Neither is an Eigen map of constant memory.
#include "engine/eigen.h"

losstape::MutableView use(const float* data) { return losstape::MutableView(Eigen::Map<const Eigen::MatrixXf>(data, 3, 2)); }
