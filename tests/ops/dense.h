// SPDX-License-Identifier: Apache-2.0
// A few rows of logits with explicit targets, evaluated on any split of their columns: for minimal inputs written out.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/vocab_stats.h"
#include "tests/ops/sample.h"

namespace losstape::testing {

struct Dense {
  Matrix logits;
  std::vector<std::int64_t> targets;
  Index vocab = -1;           // columns that are real; −1: all
  std::vector<Index> cuts{};  // where shards begin, from the second rank on
  std::vector<double> logprob_adjoint{};
  std::vector<double> entropy_adjoint{};
  std::vector<std::int64_t> gathered{};  // [rows, K]
  Matrix gathered_adjoint{};
  double temperature = 1;
  DType dtype = DType::f64;
  NonFinite non_finite = NonFinite::error;
  std::int64_t ignore_index = -100;
};

struct DenseResult {
  Matrix logprob, entropy, lse, gathered;
  Matrix gradient;
  bool ranks_agree = true;
};

// Log-prob, entropy, lse and gathered values, and the gradient of Σ adjoint · value. Throws what any rank throws.
template <class R>
[[nodiscard]] DenseResult evaluate(const Dense& dense);

// A matrix of one row, or of rows.
[[nodiscard]] Matrix row(std::initializer_list<double> x);
[[nodiscard]] Matrix rows(std::initializer_list<std::initializer_list<double>> x);

// Whether every entry is within `bound`, relative to the larger of the right entry and `floor`.
[[nodiscard]] bool near(const Matrix& found, const Matrix& right, double bound, double floor = 1);

}  // namespace losstape::testing
