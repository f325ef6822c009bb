// SPDX-License-Identifier: Apache-2.0
// A policy loss of log-probs that are given one by one: for minimal inputs written out.
#pragma once

#include <vector>

#include "ops/losses/policy_loss.h"
#include "ops/packing.h"

namespace losstape::testing {

// A number a predicted token. The pack is one sequence of one more token than that.
struct PolicyInput {
  std::vector<double> logp;
  std::vector<double> prev;
  std::vector<double> advantage;
  std::vector<double> mask;
  std::vector<double> generation{};
  std::vector<double> reference{};
  PolicyLossOptions options = PolicyLossOptions::dapo();
  Counts counts{};
};

struct PolicyCase {
  double loss = 0;
  std::vector<double> gradient;  // with respect to each log-prob
  std::vector<std::pair<const char*, double>> metrics;
};

template <class R = float>
[[nodiscard]] PolicyCase policy_case(const PolicyInput& input) {
  const auto N = static_cast<Index>(input.logp.size());
  const std::vector<Index> cu{0, N + 1};
  Packing packing;
  packing.assign(cu);
  // Token-aligned: element r describes token r, which row r − 1 predicts.
  const auto aligned = [](const std::vector<double>& of_tokens) {
    std::vector<double> column{0};
    column.insert(column.end(), of_tokens.begin(), of_tokens.end());
    return column;
  };
  const auto mask = aligned(input.mask);
  const auto advantage = aligned(input.advantage);
  const auto prev = aligned(input.prev);
  const auto generation = aligned(input.generation.empty() ? input.prev : input.generation);
  const auto reference = aligned(input.reference.empty() ? input.prev : input.reference);
  std::vector<R> logp(input.logp.begin(), input.logp.end());
  logp.push_back(R(0));
  std::vector<R> slice(logp.size(), R(-5));
  BasicTape<R> tape({.audit = Audit::unwritten_rows});
  const auto x = tape.input(View(logp), MutableView(slice));
  const auto r = policy_loss(x, packing,
                             {.token_mask = mask,
                              .advantages = advantage,
                              .prev_logprobs = prev,
                              .generation_logprobs = generation,
                              .reference_logprobs = reference},
                             input.options, input.counts);
  tape.backward(r.loss);
  PolicyCase found;
  found.loss = r.loss.item();
  found.gradient.assign(slice.begin(), slice.end() - 1);
  for (const auto& metric : r.metrics()) found.metrics.emplace_back(metric.name, metric.value.item());
  return found;
}

}  // namespace losstape::testing
