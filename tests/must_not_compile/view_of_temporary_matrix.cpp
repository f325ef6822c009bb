// SPDX-License-Identifier: Apache-2.0
// expect: use of deleted function .*View::View\(M&&\)
// A view of a temporary Eigen matrix would dangle.
#include "engine/eigen.h"

losstape::View dangling() { return losstape::View(Eigen::MatrixXf(3, 2)); }
