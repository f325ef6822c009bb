// SPDX-License-Identifier: Apache-2.0
// Memory that somebody else owns: bf16 logits in an Eigen map, and fp32 gradients in columns of a larger buffer, into which
// two micro-batches add.
#include <Eigen/Core>

#include <cmath>
#include <cstdio>
#include <vector>

#include "engine/eigen.h"
#include "engine/engine.h"
#include "ops/ops.h"

using namespace losstape;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

int main() {
  constexpr Index tokens = 6;
  constexpr Index vocab = 8;
  const std::vector<std::int32_t> cu_seqlens{0, tokens};
  const std::vector<std::int32_t> input_ids{3, 1, 4, 1, 5, 7};
  std::vector<BFloat16> logits(tokens * vocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = BFloat16(std::sin(static_cast<float>(i)));

  Matrix buffer = Matrix::Constant(tokens, 3 * vocab, -1);  // somebody's larger buffer; ours are its middle columns
  auto slice = buffer.middleCols(vocab, vocab);
  slice.setZero();

  Packing packing;
  packing.assign(cu_seqlens);
  Tape tape;
  const auto add_gradient = [&](const std::vector<float>& token_mask, Grad grad) {
    tape.clear();  // keeps its memory: from the second step on nothing is allocated
    const Var z = tape.input(View(logits.data(), tokens, vocab), MutableView(slice), grad);
    const VocabStats stats = vocab_stats(z, packing, input_ids, VocabShard::whole(vocab));
    // The count is that of all micro-batches, so the split does not change the sum.
    const LossResult nll = nll_loss(stats, packing, {.token_mask = token_mask}, {.tokens = 5});
    tape.backward(nll.loss);
    return nll.loss.item();
  };

  const float first = add_gradient({1, 1, 1, 0, 0, 0}, Grad::accumulate);
  const float second = add_gradient({0, 0, 0, 1, 1, 1}, Grad::accumulate);
  const Matrix added = slice;
  const float together = add_gradient({1, 1, 1, 1, 1, 1}, Grad::overwrite);  // what the slice held does not matter

  std::printf("loss %.4f + %.4f = %.4f\n", first, second, together);
  std::printf("the same gradient: %s\n", added.isApprox(slice, 1e-6F) ? "yes" : "no");
  std::printf("other columns untouched: %s\n", (buffer.leftCols(vocab).array() == -1).all() ? "yes" : "no");
  std::printf("norm of the gradient %.4f\n", as_eigen<float>(MutableView(slice)).norm());
}

// Output:
// loss 0.9038 + 1.4995 = 2.4034
// the same gradient: yes
// other columns untouched: yes
// norm of the gradient 0.4329
