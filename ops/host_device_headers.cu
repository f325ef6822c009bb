// SPDX-License-Identifier: Apache-2.0
// Includes every header that is shared by host and device, so that nvcc compiles each one: a later kernel finds them ready.
// A template is only looked at where it is used, so the kernel calls something of each.
#include "engine/device.h"
#include "engine/dtype.h"
#include "ops/dual.h"
#include "ops/losses/kl.h"
#include "ops/losses/nll_functor.h"
#include "ops/losses/policy_functor.h"
#include "ops/row_gradient.h"
#include "ops/row_stats.h"

namespace losstape {

__global__ void use_host_device_headers(const BFloat16* x, Float16* y, double* z) {
  const float value = convert<float>(x[threadIdx.x]);
  y[threadIdx.x] = convert<Float16>(value);
  const RowStats stats = join(RowStats{static_cast<double>(value), 1, 0}, RowStats{});
  const RowGradient row{.max = stats.m, .log1p_s = log_sum(stats), .mean_u = mean_below_max(stats), .a = 1};
  const RowScalars<float> scalars(row);
  const auto ratio =
      exp(Dual<double, 2>::variable(log_prob(stats, value), 0) - Dual<double, 2>::variable(entropy(stats), 1));
  const auto terms = PolicyFunctor{{}}(ratio, ratio, ratio, ratio, NllFunctor{}(ratio));
  const auto sound =
      PolicyFunctor{{}}(Paired<float>(1), Paired<float>(1), Paired<float>(1), Paired<float>(1), Paired<float>(1));
  z[threadIdx.x] =
      scalars(value) + terms[0].d[0] + sound[0].value + point_gradient(row, value, 1) + static_cast<double>(fault_of(stats));
}

}  // namespace losstape
