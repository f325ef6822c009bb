// SPDX-License-Identifier: Apache-2.0
// Rows of logits on which careless arithmetic fails, and how near to the truth a result must come.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "ops/reference.h"

namespace losstape::testing {

struct AdversarialRow {
  std::string name;
  std::vector<double> logits;
  Index target = 0;
};

// Rows of `vocab` columns (any from 1 on). `huge`: the largest magnitude that a difference of two logits may safely have
// half of.
[[nodiscard]] std::vector<AdversarialRow> adversarial_rows(Index vocab, double huge);

// The promise on truth, for the fp32 arithmetic of one row. `epsilon` is 2⁻²⁴; d is a column's distance from the maximum.
struct TruthBounds {
  double logprob = 2e-6;  // relative
  double entropy = 1e-5;
  double gradient = 32;  // · epsilon of the term size
  double distance = 2;   // · |d| · epsilon, added to the gradient's; to the others' where there is a temperature
  double epsilon = 0x1p-24;
  double smallest = 0x1p-149;  // below the type's range nothing is promised
};
[[nodiscard]] inline TruthBounds fp64_bounds() { return {1e-11, 1e-11, 1e-11, 0, 1, 1e-300}; }

// The largest share of its bound that a quantity used; of those below the type's range, whose error is their rounding,
// apart.
struct Worst {
  double logprob = 0;
  double entropy = 0;
  double gradient = 0;
  double tiny = 0;
  std::string where;  // of the first that broke its bound

  // `size`: of the quantity or its terms. `place` names where, and is called only for what broke its bound.
  void take(double& most, double error, double bound, double size, const auto& place) {
    const double share = error == 0 ? 0 : error / bound;
    if (!(share <= 1) && where.empty()) where = place() + ": " + std::to_string(share) + " of the bound";
    double& of = std::abs(size) < 1e-36 ? tiny : most;
    if (!(share <= of)) of = share;
  }
};

// What one row of a run is compared with.
struct RowTruth {
  std::vector<double> log_p;  // by the oracle
  std::vector<double> p;
  std::vector<double> rest;  // 1 − p
  double entropy = 0;
  double temperature = 1;

  RowTruth(const reference::Matrix& logits, Index row, double temperature);
  // Mean distances of the columns that are not the maximum, as they weigh in the log-sum and in the entropy.
  double sum_distance = 0;
  double entropy_distance = 0;
  std::vector<double> distance;
};

}  // namespace losstape::testing
