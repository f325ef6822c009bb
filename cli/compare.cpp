// SPDX-License-Identifier: Apache-2.0
// When two numbers are the same, and which difference is the worst.
#include "cli/compare.h"

#include <array>
#include <cmath>
#include <limits>

#include "cli/json.h"
#include "cli/nearest.h"

namespace losstape::cli {

Tolerances Tolerances::of(DType real) {
  if (real == DType::f64) return {{1e-11, 1e-10}, {1e-11, 1e-10}};
  return {{2e-6, 2e-6}, {5e-6, 5e-6}};
}

std::string Mismatch::text() const {
  std::vector<std::string> place;
  for (const Index i : index) place.push_back(std::to_string(i));
  return tensor + (place.empty() ? "" : "[" + listed(place) + "]") + ": got " + number(got) + ", want " + number(want) +
         ", error " + number(error) + ", tolerance " + number(tolerance);
}

void Comparison::scalar(const std::string& name, double got, double want, const Tolerance& tolerance) {
  element(name, {}, got, want, tolerance);
}

void Comparison::tensor(const std::string& name, const View& got, const View& want, const Tolerance& tolerance) {
  for (Index r = 0; r < want.rows; ++r) {
    for (Index c = 0; c < want.cols; ++c) {
      const std::array<Index, 2> place{r, c};
      element(name, std::span(place).first(want.cols == 1 ? 1 : 2), got.get<double>(r, c), want.get<double>(r, c),
              tolerance);
    }
  }
}

void Comparison::element(const std::string& name, std::span<const Index> index, double got, double want,
                         const Tolerance& tolerance) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return;
  const bool finite = std::isfinite(got) && std::isfinite(want);
  const double error = std::abs(got - want);
  const double allowed = finite ? tolerance.absolute + tolerance.relative * std::abs(want) : 0;
  if (finite && error <= allowed) return;
  if (wrong_.empty() || wrong_.back() != name) wrong_.push_back(name);
  // Where nothing is allowed, or nothing is finite, every difference is as bad as can be; the larger one is the worse.
  const double ratio = finite && allowed > 0 ? error / allowed : std::numeric_limits<double>::infinity();
  if (worst_ && (ratio < worst_ratio_ || (ratio == worst_ratio_ && !(error > worst_->error)))) return;
  worst_ = Mismatch{name, {index.begin(), index.end()}, got, want, error, allowed};
  worst_ratio_ = ratio;
}

}  // namespace losstape::cli
