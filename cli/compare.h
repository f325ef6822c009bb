// SPDX-License-Identifier: Apache-2.0
// What was computed against what was expected, element by element.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/dtype.h"
#include "engine/view.h"

namespace losstape::cli {

// |got − want| ≤ absolute + relative·|want|.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

// The tolerances of the golden cases, for results computed in fp64 and in fp32.
struct Tolerances {
  Tolerance vocabulary;  // lse, log-probs, entropies, gradients of logits
  Tolerance loss;        // losses, metrics, gradients of log-probs

  [[nodiscard]] static Tolerances of(DType real);
};

struct Mismatch {
  std::string tensor;
  std::vector<Index> index;  // empty for a scalar
  double got = 0;
  double want = 0;
  double error = 0;      // |got − want|
  double tolerance = 0;  // what was allowed there

  [[nodiscard]] std::string text() const;
};

// Keeps the element that is worst, by error over tolerance. NaN equals NaN, infinities equal by sign.
class Comparison {
 public:
  void scalar(const std::string& name, double got, double want, const Tolerance& tolerance);
  // `got` has the shape of `want`; a column has one index.
  void tensor(const std::string& name, const View& got, const View& want, const Tolerance& tolerance);
  void element(const std::string& name, std::span<const Index> index, double got, double want, const Tolerance& tolerance);

  [[nodiscard]] const std::optional<Mismatch>& worst() const { return worst_; }
  // Names of what had a bad element, in the order of comparing.
  [[nodiscard]] const std::vector<std::string>& wrong() const { return wrong_; }

 private:
  std::optional<Mismatch> worst_;
  double worst_ratio_ = 0;
  std::vector<std::string> wrong_;
};

}  // namespace losstape::cli
