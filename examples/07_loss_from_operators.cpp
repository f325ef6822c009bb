// SPDX-License-Identifier: Apache-2.0
// Losses written from scratch: CISPO as one functor, and a sum of terms from operators on Vars. What stop_gradient freezes
// is no error of the gradient: gradcheck holds it still, and reports how far the plain difference quotient is off.
#include <cmath>
#include <iomanip>
#include <iostream>
#include <vector>

#include "engine/engine.h"
#include "ops/ops.h"

using namespace losstape;

int main() {
  constexpr Index tokens = 7;
  constexpr Index vocab = 6;
  const std::vector<std::int32_t> cu_seqlens{0, 4, 7};
  const std::vector<std::int32_t> input_ids{0, 5, 2, 3, 1, 4, 2};
  const std::vector<double> token_mask{0, 1, 1, 1, 0, 1, 1};
  const std::vector<double> advantages{0, 1, 1, 1, 0, -0.5, -0.5};
  const std::vector<double> prev_logprobs{0, -3.1, -1.0, -1.9, 0, -1.75, -1.6};
  std::vector<double> logits(tokens * vocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<double>(i));
  Packing packing;
  packing.assign(cu_seqlens);

  // The clipped ratio weighs the log-prob, and is not differentiated.
  const auto cispo = [](const auto& logp, const auto& old, const auto& adv) {
    return -adv * stop_gradient(clamp(exp(logp - old), 0.8, 1.2)) * logp;
  };
  const auto by_functor = [&](auto& tape, auto z) {
    const auto column = [&](const auto& data) { return tape.constant(packing.to_predictions(data)); };
    const auto logp = vocab_stats(z, packing, input_ids, VocabShard::whole(vocab)).logprob;
    const auto token = token_map(cispo, logp, column(prev_logprobs), column(advantages));
    return masked_mean(token, column(token_mask), packing);
  };
  const auto by_operators = [&](auto& tape, auto z) {
    const auto column = [&](const auto& data) { return tape.constant(packing.to_predictions(data)); };
    const auto logp = vocab_stats(z, packing, input_ids, VocabShard::whole(vocab)).logprob;
    const auto ratio = exp(logp - column(prev_logprobs));
    const auto token = 0.5 * (ratio * ratio) - column(advantages) * ratio;
    return masked_mean(token, column(token_mask), packing);
  };

  const auto show = [&](const char* name, const auto& loss) {
    const GradcheckReport report = gradcheck(loss, View(logits.data(), tokens, vocab));
    std::cout << std::setw(12) << name << " passed: " << (report ? "yes" : report.summary()) << ", stopped: " << std::fixed
              << std::setprecision(3) << report.stopped << "\n";
  };
  show("by functor", by_functor);
  show("by operators", by_operators);
}

// Output:
//   by functor passed: yes, stopped: 0.728
// by operators passed: yes, stopped: 0.000
