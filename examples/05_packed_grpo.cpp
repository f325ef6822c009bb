// SPDX-License-Identifier: Apache-2.0
// GRPO over a pack of sequences of several lengths: one node over the logits, one reduction for the loss and its metrics.
#include <cmath>
#include <cstdio>
#include <vector>

#include "engine/engine.h"
#include "ops/ops.h"

using namespace losstape;

// Stands for what a trainer has: smooth numbers in [−scale, scale].
std::vector<float> wave(Index size, double scale, double pace) {
  std::vector<float> column(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < column.size(); ++i) {
    column[i] = static_cast<float>(scale * std::sin(pace * static_cast<double>(i)));
  }
  return column;
}

int main() {
  constexpr Index tokens = 16;  // rows of the pack, padding among them
  constexpr Index vocab = 32;
  const std::vector<std::int32_t> cu_seqlens{0, 5, 8, 14};
  const std::vector<std::int32_t> cu_seqlens_padded{0, 6, 10, 16};
  std::vector<std::int64_t> input_ids(tokens);
  for (Index i = 0; i < tokens; ++i) input_ids[static_cast<std::size_t>(i)] = 7 * i % vocab;

  // Token-aligned columns: element r describes the token in row r.
  const std::vector<float> token_mask{0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1};
  const std::vector<float> advantages = wave(tokens, 1, 0.7);
  std::vector<float> prev_logprobs = wave(tokens, 0.1, 1.3);
  for (float& logprob : prev_logprobs) logprob -= 3.5F;
  const std::vector<float> logits = wave(tokens * vocab, 0.3, 1.9);
  std::vector<float> gradient(tokens * vocab);

  Packing packing;
  packing.assign(cu_seqlens, cu_seqlens_padded);
  Tape tape;
  const Var z = tape.input(View(logits.data(), tokens, vocab), MutableView(gradient.data(), tokens, vocab));
  const VocabStats stats = vocab_stats(z, packing, input_ids, VocabShard::whole(vocab));
  const LossColumns columns{.token_mask = token_mask,
                            .advantages = advantages,
                            .prev_logprobs = prev_logprobs,
                            .reference_logprobs = prev_logprobs};
  const LossResult grpo = policy_loss(stats, packing, columns, PolicyLossOptions::grpo());
  tape.backward(grpo.loss);

  for (const Metric<float>& metric : grpo.metrics()) std::printf("%-28s%9.4f\n", metric.name, metric.value.item());
  double squares = 0;
  for (const float g : gradient) squares += g * g;
  std::printf("\nnorm of the gradient %.4f\n", std::sqrt(squares));
}

// Output:
// loss                          -0.0905
// probs_ratio                    1.0898
// probs_ratio_clamped            1.0521
// probs_ratio_min                0.6919
// probs_ratio_max                1.4761
// probs_ratio_clamped_min        0.8000
// probs_ratio_clamped_max        1.2000
// kl_penalty                     0.0260
// token_mult_prob_error          1.0000
// gen_kl_error                   0.0000
// policy_kl_error                0.0000
// js_divergence_error            0.0000
// sampling_importance_ratio      1.0000
// approx_entropy                 3.7062
// num_valid_samples              3.0000
// positive_nll_loss              0.0000
//
// norm of the gradient 0.2298
