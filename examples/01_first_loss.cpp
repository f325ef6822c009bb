// SPDX-License-Identifier: Apache-2.0
// A first loss: the negative log-likelihood of two sequences in one pack, and its gradient in memory of the caller's.
#include <cstdio>
#include <vector>

#include "engine/engine.h"
#include "ops/ops.h"

using namespace losstape;

int main() {
  constexpr Index tokens = 5;
  constexpr Index vocab = 4;
  const std::vector<std::int32_t> cu_seqlens{0, 3, 5};  // sequence 0 has rows 0, 1, 2; sequence 1 has rows 3, 4
  const std::vector<std::int64_t> input_ids{2, 0, 1, 3, 3};
  const std::vector<float> token_mask{1, 1, 1, 1, 1};
  const std::vector<float> logits{1, 0, 0,  0,   // predicts token 1, which is 0
                                  0, 2, 0,  0,   // predicts token 2, which is 1
                                  9, 9, 9,  9,   // last of its sequence: predicts nothing
                                  0, 0, 0,  0,   // predicts token 4, which is 3
                                  5, 0, -5, 0};  // last of its sequence
  std::vector<float> gradient(tokens * vocab);

  Packing packing;
  packing.assign(cu_seqlens);
  Tape tape;
  const Var z = tape.input(View(logits.data(), tokens, vocab), MutableView(gradient.data(), tokens, vocab));
  const VocabStats stats = vocab_stats(z, packing, input_ids, VocabShard::whole(vocab));
  const LossResult nll = nll_loss(stats, packing, {.token_mask = token_mask});
  tape.backward(nll.loss);

  std::printf("loss %.4f over %.0f tokens\n", nll.loss.item(), nll.metric("num_unmasked_tokens").value.item());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    std::printf("%8.4f%s", gradient[i], i % vocab == vocab - 1 ? "\n" : "");
  }
}

// Output:
// loss 0.8236 over 3 tokens
//  -0.1749  0.0583  0.0583  0.0583
//   0.0321 -0.0963  0.0321  0.0321
//   0.0000  0.0000  0.0000  0.0000
//   0.0833  0.0833  0.0833 -0.2500
//   0.0000  0.0000  0.0000  0.0000
