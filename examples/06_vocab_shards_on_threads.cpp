// SPDX-License-Identifier: Apache-2.0
// A vocabulary in shards, a rank each, on threads of one process. The loss is the same on 1, 2 and 3 ranks; a step costs one
// collective forward and none backward, whatever is asked of vocab_stats.
#include <cmath>
#include <cstdio>
#include <vector>

#include "distributed/counting.h"
#include "distributed/threads.h"
#include "engine/engine.h"
#include "ops/ops.h"

using namespace losstape;

struct Step {
  float loss;
  int forward;  // collectives
  int backward;
};

int main() {
  constexpr Index tokens = 8;
  constexpr Index vocab = 50;
  const std::vector<std::int32_t> cu_seqlens{0, 3, 8};
  const std::vector<std::int32_t> input_ids{3, 14, 15, 9, 26, 5, 35, 8};
  const std::vector<float> token_mask(tokens, 1.0F);
  std::vector<float> logits(tokens * vocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 3 * std::sin(static_cast<float>(i));
  std::vector<float> gradient(tokens * vocab);  // every rank writes its own columns of it

  for (const int ranks : {1, 2, 3}) {
    const std::vector<Step> steps = threads::run(ranks, [&](Communicator& group) {
      CountingCommunicator counted(group);
      const VocabShard shard = VocabShard::even(counted, vocab);
      const View values(logits.data() + shard.begin, tokens, shard.width(), vocab);
      const MutableView slice(gradient.data() + shard.begin, tokens, shard.width(), vocab);
      Packing packing;
      packing.assign(cu_seqlens);

      Tape tape;
      const VocabStats stats = vocab_stats(tape.input(values, slice), packing, input_ids, shard, {.entropy = true});
      const Var mask = tape.constant(packing.to_predictions(token_mask));
      const Var loss = masked_mean(-stats.logprob - 0.01 * stats.entropy, mask, packing);
      const int forward = counted.step().calls;
      tape.backward(loss);
      return Step{loss.item(), forward, counted.step().calls - forward};
    });
    double squares = 0;
    for (const float g : gradient) squares += g * g;
    std::printf("%d ranks: loss %.5f, norm of the gradient %.5f, collectives %d forward, %d backward\n", ranks,
                steps.back().loss, std::sqrt(squares), steps.back().forward, steps.back().backward);
  }
}

// Output:
// 1 ranks: loss 4.43639, norm of the gradient 0.40743, collectives 0 forward, 0 backward
// 2 ranks: loss 4.43639, norm of the gradient 0.40743, collectives 1 forward, 0 backward
// 3 ranks: loss 4.43639, norm of the gradient 0.40743, collectives 1 forward, 0 backward
