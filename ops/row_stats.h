// SPDX-License-Identifier: Apache-2.0
// What one pass over a row of logits leaves: three numbers that join over lanes, tiles, threads and ranks. Host and device.
#pragma once

#include <cmath>
#include <limits>

#include "engine/device.h"

namespace losstape {

// Over columns x_j of a row (scaled by 1/temperature): m = max x_j, and with one column that holds the maximum left out,
//   s = Σ e^(x_j − m),   u = Σ e^(x_j − m) (x_j − m).
// The maximum's own term, e^0 = 1, is never added to s: near-certain rows keep 1 − p = s / (1 + s) in full precision where
// 1 + s would round it away. Identity: (−∞, 0, 0), also what columns of −∞ leave. A NaN column makes s NaN.
struct RowStats {
  double m = -std::numeric_limits<double>::infinity();
  double s = 0;
  double u = 0;
};

// The statistics of the union. With m₁ ≥ m₂ and d = m₂ − m₁, the second maximum becomes an ordinary column:
//   s = s₁ + (1 + s₂) e^d,   u = u₁ + e^d (u₂ + (1 + s₂) d).
// The guard says "equals −∞" and not "greater than": a comparison that a NaN fails would swallow the NaN.
// Where m is as stored, and only s and u are scaled, `temperature` scales d.
LOSSTAPE_HOST_DEVICE inline RowStats join(const RowStats& a, const RowStats& b, double temperature = 1) {
  const RowStats& high = b.m > a.m ? b : a;
  const RowStats& low = b.m > a.m ? a : b;
  if (low.m == -std::numeric_limits<double>::infinity()) return {high.m, high.s + low.s, high.u + low.u};
  const double d = (low.m - high.m) / temperature;
  const double scale = std::exp(d);
  return {high.m, high.s + (1 + low.s) * scale, high.u + scale * (low.u + (1 + low.s) * d)};
}

// Why a row has no distribution, if it has none.
enum class RowFault : unsigned char { none, not_read, nan, plus_infinity, no_support };

LOSSTAPE_HOST_DEVICE inline RowFault fault_of(const RowStats& row) {
  if (row.m == std::numeric_limits<double>::infinity()) return RowFault::plus_infinity;
  if (!(row.s >= 0)) return RowFault::nan;
  if (row.m == -std::numeric_limits<double>::infinity()) return RowFault::no_support;
  return RowFault::none;
}

[[nodiscard]] constexpr const char* describe(RowFault fault) {
  switch (fault) {
    case RowFault::none: return "the row is sound";
    case RowFault::not_read: return "the row was not read";
    case RowFault::nan: return "the logits of the row hold a NaN";
    case RowFault::plus_infinity: return "the logits of the row hold +inf";
    case RowFault::no_support: return "every logit of the row is -inf";
  }
  return "?";
}

// log Σ e^x_j − m: the part of the log-sum that is kept apart from the maximum.
LOSSTAPE_HOST_DEVICE inline double log_sum(const RowStats& row) { return std::log1p(row.s); }

// The mean of x_j − m under the softmax.
LOSSTAPE_HOST_DEVICE inline double mean_below_max(const RowStats& row) { return row.u / (1 + row.s); }

// log p of a column whose (scaled) logit is x.
LOSSTAPE_HOST_DEVICE inline double log_prob(const RowStats& row, double x) { return -((row.m - x) + log_sum(row)); }

// H = −Σ p log p = log1p(s) − u / (1 + s): a sum of two terms of one sign.
LOSSTAPE_HOST_DEVICE inline double entropy(const RowStats& row) { return log_sum(row) - mean_below_max(row); }

}  // namespace losstape
