// SPDX-License-Identifier: Apache-2.0
// The one form that the gradient of every loss over a row of logits has. Host and device.
#pragma once

#include <cmath>
#include <limits>

#include "engine/device.h"

namespace losstape {

// With d_j = (x_j − max) / temperature and log p_j = d_j − log1p_s:
//   dL/dx_j = p_j (a − h (d_j − mean_u)) / temperature,
// since log p_j + H = d_j − mean_u. For a loss whose adjoints are g_k of log p of column k, h of the entropy and l of the
// log-sum: a = l − Σ g_k; the columns k get their g_k besides (PointGradient).
struct RowGradient {
  double max = 0;      // the largest logit as stored, neither scaled nor rounded
  double log1p_s = 0;  // log(1 + s)
  double mean_u = 0;   // u / (1 + s)
  double a = 0;
  double h = 0;
  double temperature = 1;
};

// e^x with the exponential in R: the argument's rounding to R, up to |x| 2⁻²⁴, is put back by its first-order term. A result
// of 0 needs none, and must not meet −∞ − (−∞); NaN passes.
template <class R>
LOSSTAPE_HOST_DEVICE double rounded_exp(double x) {
  const R rounded = static_cast<R>(x);
  const double e = std::exp(rounded);
  return e == 0 ? 0.0 : e + e * (x - static_cast<double>(rounded));
}

// The form with its exponential in R, for the columns that a kernel streams over. The rest is fp64: rounded once, at the
// store.
template <class R>
struct RowScalars {
  double max, log1p_s, mean_u, a, h, scale;

  LOSSTAPE_HOST_DEVICE explicit RowScalars(const RowGradient& row)
      : max(row.max), log1p_s(row.log1p_s), mean_u(row.mean_u), a(row.a), h(row.h), scale(1 / row.temperature) {}

  // A column of −∞ has p = 0 and gets exactly 0. The guard says "equals 0", so that a NaN passes it.
  LOSSTAPE_HOST_DEVICE R operator()(double x) const {
    const double d = (x - max) * scale;  // never x·scale − max·scale: a common offset would not cancel
    const double p = rounded_exp<R>(d - log1p_s);
    return p == 0 ? R(0) : static_cast<R>(p * (a - h * (d - mean_u)) * scale);
  }
};

// The gradient of a column that has an adjoint g of its own log-prob: dL/dx = g (1 − p) + p (a + g − h (d − mean_u)), over
// the temperature. 1 − p is formed as −expm1(log p), so a near-certain target keeps its gradient; where the column's g is
// all of −a, the second term is exactly 0. A column of −∞ gets 0, but in a row without a distribution (max NaN) all get NaN.
LOSSTAPE_HOST_DEVICE inline double point_gradient(const RowGradient& row, double x, double g) {
  if (x == -std::numeric_limits<double>::infinity() && row.max == row.max) return 0;
  const double d = (x - row.max) / row.temperature;
  const double log_p = d - row.log1p_s;
  const double p = std::exp(log_p);
  const double rest = p == 0 ? 0.0 : p * ((row.a + g) - row.h * (d - row.mean_u));
  return (g * -std::expm1(log_p) + rest) / row.temperature;
}

}  // namespace losstape
