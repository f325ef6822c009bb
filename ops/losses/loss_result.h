// SPDX-License-Identifier: Apache-2.0
// What every loss returns, and what every loss is given.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "engine/tape.h"
#include "engine/view.h"
#include "ops/masked_reduce.h"

namespace losstape {

// A reported number: its name as the source has it, its value, and how micro-batches and ranks combine it (tokens and
// sequences: values divided by the global count add up; none: they add up; min, max).
template <class R>
struct Metric {
  const char* name = "";
  BasicVar<R> value;
  Per per = Per::none;
};

// A loss and its metrics, all made by one reduction. Values are there from the recording on and last until tape.clear().
template <class R>
class BasicLossResult {
 public:
  static constexpr std::size_t kMost = 24;

  BasicVar<R> loss;

  void add(const char* name, BasicVar<R> value, Per per) { metrics_[size_++] = {name, value, per}; }
  [[nodiscard]] std::span<const Metric<R>> metrics() const { return {metrics_.data(), size_}; }
  // The metric of that name. Errors: UsageError that lists the names.
  [[nodiscard]] const Metric<R>& metric(const char* name) const;

 private:
  std::array<Metric<R>, kMost> metrics_{};
  std::size_t size_ = 0;
};

using LossResult = BasicLossResult<float>;

// Per-token data of a pack, token-aligned: element r describes the token in global row r. Any float or integer type.
struct LossColumns {
  View token_mask;             // [tokens] 1 where the token counts
  View advantages{};           // [tokens]
  View prev_logprobs{};        // [tokens] log p under the policy before the update
  View generation_logprobs{};  // [tokens] log p under the sampler
  View reference_logprobs{};   // [tokens] log p under the reference policy
  View sample_mask{};          // [sequences] 1 where the sequence counts; empty: all do
};

extern template class BasicLossResult<float>;
extern template class BasicLossResult<double>;

}  // namespace losstape
