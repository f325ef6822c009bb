// SPDX-License-Identifier: Apache-2.0
// A vocabulary-sized node of one's own: z-loss, lse² of each row, over a sharded vocabulary. Its gradient goes into the same
// slice as that of vocab_stats; the tape knows who comes first and who adds. Checked over two thread ranks.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <vector>

#include "distributed/threads.h"
#include "engine/engine.h"
#include "ops/ops.h"

using namespace losstape;

struct VocabZLoss {
  static constexpr auto name = "vocab_z_loss";
  const Packing* packing;
  VocabShard shard;
  Index chunk_rows = 64;  // rows that are done before the next are begun

  void reserve(auto& c) const {
    c.save(of<RowStats>, packing->rows());  // all that backward needs: 24 bytes a row
    shard.group.reserve_join(c, of<RowStats>, packing->rows());
  }
  void forward(auto& c) const {
    const auto stats = c.saved(of<RowStats>, 0);
    for (Index r = 0; r < stats.rows; ++r) {
      stats(r) = packing->has_target(r) ? local_row_stats(c.in(0), r, shard) : RowStats{};
    }
    shard.group.join(name, stats.span(), join_row_stats, c.workspace(of<std::byte>, 0).span());
    for (Index r = 0; r < stats.rows; ++r) c.out(0).write(r, packing->has_target(r) ? std::pow(lse(stats(r)), 2) : 0);
  }
  void backward(auto& c) const {
    const auto slice = c.grad(0);
    for (Index from = 0; from < slice.rows(); from += chunk_rows) {
      c.pool().for_ranges(std::min(chunk_rows, slice.rows() - from), [&](Index begin, Index end, int) {
        for (Index r = from + begin; r < from + end; ++r) write_gradient(c, slice, r);
      });
    }
  }
  void write_gradient(auto& c, const auto& slice, Index r) const {
    if (!packing->has_target(r) || c.dout(0)(r) == 0) return slice.zero_row(r);
    const RowStats& row = c.saved(of<RowStats>, 0)(r);
    const RowGradient form{.max = row.m, .log1p_s = log_sum(row), .a = 2 * c.dout(0)(r) * lse(row)};
    write_softmax_row(slice, c.in(0), r, shard, form);  // a · softmax, this shard's columns
  }
  static double lse(const RowStats& row) { return row.m + log_sum(row); }
};

int main() {
  constexpr Index tokens = 6;
  constexpr Index vocab = 10;
  const std::vector<std::int32_t> cu_seqlens{0, 4, 6};
  const std::vector<std::int32_t> input_ids{3, 1, 4, 1, 5, 9};
  const std::vector<double> token_mask{1, 1, 0, 1, 1, 1};
  std::vector<double> logits(tokens * vocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 2 * std::sin(static_cast<double>(i));
  Packing packing;
  packing.assign(cu_seqlens);

  const auto reports = threads::run(2, [&](Communicator& group) {
    const VocabShard shard = VocabShard::even(group, vocab);
    const View own(logits.data() + shard.begin, tokens, shard.width(), vocab);  // this rank's columns of the matrix
    const auto loss = [&](auto& tape, auto z) {
      const auto logprob = vocab_stats(z, packing, input_ids, shard).logprob;
      const auto token = 0.1 * tape.record(VocabZLoss{&packing, shard}, {z}, logprob.shape()) - logprob;
      return masked_mean(token, tape.constant(packing.to_predictions(token_mask)), packing);
    };
    const auto sum = [&](double x) { return group.all_reduce(x, Reduce::sum); };
    // Ranks take turns: one moves an entry of its own columns, both evaluate.
    return gradcheck(loss, own, {.rank = group.rank(), .coordinates = {own.size(), own.size()}, .sum = sum});
  });
  for (const GradcheckReport& report : reports) {
    std::cout << "passed: " << (report ? "yes" : report.summary()) << ", entries " << report.checked << "\n";
  }
}

// Output:
// passed: yes, entries 30
// passed: yes, entries 30
