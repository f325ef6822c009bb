// SPDX-License-Identifier: Apache-2.0
// Finding a metric by its name.
#include "ops/losses/loss_result.h"

#include <string>
#include <string_view>

#include "engine/error.h"

namespace losstape {

template <class R>
const Metric<R>& BasicLossResult<R>::metric(const char* name) const {
  std::string known;
  for (const Metric<R>& metric : metrics()) {
    if (std::string_view(metric.name) == name) return metric;
    known += (known.empty() ? "" : ", ") + std::string(metric.name);
  }
  throw UsageError({"LossResult", "a metric among " + known, name});
}

template class BasicLossResult<float>;
template class BasicLossResult<double>;

}  // namespace losstape
