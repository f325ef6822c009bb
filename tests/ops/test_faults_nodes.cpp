// SPDX-License-Identifier: Apache-2.0
// Faults that others met in nodes over shared logits, each as its minimal input and the right result; and their grid of
// sizes.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "ops/token_map.h"
#include "tests/ops/dense.h"
#include "tests/ops/node_table.h"
#include "tests/support/refusal.h"

namespace losstape::testing {
namespace {

constexpr double kPrinted = 1.5e-6;

}  // namespace

TEST_CASE("logits that two nodes read stay as they are, and both gradients add up") {  // B71
  std::vector<float> logits{2, 0};
  std::vector<float> slice(2, -9);
  const std::vector<std::int64_t> target{0};
  Tape tape({.audit = Audit::unwritten_rows});
  const Var z = tape.input(View(logits.data(), 1, 2), MutableView(slice.data(), 1, 2));
  const Var logp = vocab_stats(z, target, VocabShard::whole(2)).logprob;
  const Var entropy = vocab_stats(z, target, VocabShard::whole(2), {.entropy = true}).entropy;
  tape.backward(logp + entropy);
  CHECK(logits == std::vector<float>{2, 0});
  CHECK(std::abs(slice[0] + 0.090784) <= kPrinted);
  CHECK(std::abs(slice[1] - 0.090784) <= kPrinted);
  Tape in_place;
  const Var over = in_place.input_in_place(MutableView(logits.data(), 1, 2));
  (void)vocab_stats(over, target, VocabShard::whole(2));
  check_says(refusal([&] { (void)vocab_stats(over, target, VocabShard::whole(2)); }), "in-place");
}

TEST_CASE("the order of two nodes over the same logits changes no bit") {  // B72
  for (const std::vector<Index>& cuts : std::vector<std::vector<Index>>{{}, {2}}) {
    std::vector<DenseResult> results;
    threads::run(int(cuts.size()) + 1, [&](Communicator& group) {
      const VocabShard shard = VocabShard::even(group, 4);
      const std::vector<float> all{2, -1, 0.5, 1};
      const std::vector<float> logits(all.begin() + shard.begin, all.begin() + shard.end);
      const std::vector<std::int64_t> target{0};
      std::vector<std::vector<float>> slices;
      for (const bool entropy_first : {false, true}) {
        std::vector<float>& slice = slices.emplace_back(logits.size(), -9.0F);
        Tape tape;
        const Var z = tape.input(View(logits.data(), 1, shard.width()), MutableView(slice.data(), 1, shard.width()));
        const auto logp_of = [&] { return vocab_stats(z, target, shard).logprob; };
        const auto entropy_of = [&] { return vocab_stats(z, target, shard, {.entropy = true}).entropy; };
        Var logp = entropy_first ? Var() : logp_of();
        const Var entropy = entropy_of();
        if (entropy_first) logp = logp_of();
        CHECK(std::abs(logp.item() + 0.495182) <= kPrinted);
        CHECK(std::abs(entropy.item() - 1.014403) <= kPrinted);
        tape.backward(entropy);
        const std::vector<double> right{-0.316444, 0.075275, 0.133375, 0.107794};
        for (Index c = 0; c < shard.width(); ++c) {
          CHECK(std::abs(slice[std::size_t(c)] - right[std::size_t(shard.begin + c)]) <= kPrinted);
        }
      }
      CHECK(slices[0] == slices[1]);
    });
  }
}

TEST_CASE("an upstream of any strides is read as it stands") {  // B77
  const std::vector<float> logits(6, 0.0F);
  const std::vector<std::int64_t> targets{0, 0, 0};
  const std::vector<float> values{1, 9, 2, 9, 3};
  const auto rows_for = [&](const View& seed) {
    std::vector<float> slice(6, -9);
    Tape tape;
    const Var z = tape.input(View(logits.data(), 3, 2), MutableView(slice.data(), 3, 2));
    tape.backward(vocab_stats(z, targets, VocabShard::whole(2)).logprob, seed);
    return std::vector<float>{slice[0], slice[2], slice[4]};
  };
  CHECK(rows_for(View(values.data(), 3, 1, 0)) == std::vector<float>{0.5, 0.5, 0.5});
  CHECK(rows_for(View(values.data(), 3, 1, 2)) == std::vector<float>{0.5, 1, 1.5});
  CHECK(rows_for(View(values.data() + 4, 3, 1, -2)) == std::vector<float>{1.5, 1, 0.5});
}

TEST_CASE("an upstream of many sizes gives each row its own, and a NaN row with none stays 0") {  // B88
  const std::vector<double> upstream{1, -2, 0, 0.5};
  Matrix logits = rows({{0.5, -1, 2}, {1, 1.5, -0.25}, {0, 0, 0}, {3, 2, 1}});
  const std::vector<Index> targets{0, 2, 1, 2};
  reference::Vector adjoint = Eigen::Map<const reference::Vector>(upstream.data(), 4);
  const Matrix right = reference::logprob_gradient(logits, targets, adjoint);
  logits.row(2).setConstant(std::numeric_limits<double>::quiet_NaN());
  const Dense dense{.logits = logits, .targets = {0, 2, 1, 2}, .cuts = {1}, .logprob_adjoint = upstream};
  CHECK(near(evaluate<double>(dense).gradient, right, 1e-15));
}

TEST_CASE("every size class, split, chunk and dtype equals the dense fp64 answer") {  // B90
  const auto find = [](const std::string& name) {
    for (const Sample& sample : samples()) {
      if (sample.name == name) return sample;
    }
    throw std::logic_error("no sample " + name);
  };
  const Sample sample = find("all outputs together");
  for (const Index V : {1, 3, 4, 1000}) {
    for (const std::vector<Index>& lengths : std::vector<std::vector<Index>>{{}, {1}, {1, 0, 4}}) {
      const Batch batch = make_batch({.name = "grid", .lengths = lengths, .vocab = V, .seed = 3});
      const Index N = batch.tokens();
      const Matrix seed = upstream_of(sample, batch);
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const std::vector<Matrix> x{rounded(batch.logits, dtype)};
        const Truth right = sample.truth(batch, x, seed);
        if (V == 1) {
          // Log-prob, entropy and gathered are 0; what is left is the log-sum, the logit itself.
          for (Index g = 0; g < N; ++g) CHECK(std::abs(right.y(g, 0) + 0.2 * x[0](g, 0) / 0.9) <= 1e-14);
        }
        for (const std::vector<Index>& cuts : std::vector<std::vector<Index>>{{}, {V / 2}, {V / 3, V - 1}}) {
          for (const int context : {1, 2}) {
            for (const Index chunk : {Index{1}, Index{2}, N, N + 1}) {
              CAPTURE(V);
              CAPTURE(N);
              CAPTURE(name(dtype));
              CAPTURE(cuts.size());
              CAPTURE(context);
              CAPTURE(chunk);
              const Outcome found = evaluate<float>(
                  sample, batch, x, seed, {.dtype = dtype, .cuts = cuts, .context_ranks = context, .chunk_rows = chunk});
              CHECK(found.faults == "");
              CHECK(far_from(found.y, right.y, 4e-6, "y") == "");
              CHECK(far_from(found.gradients[0], right.gradients[0], 4e-6, "gradient") == "");
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a vocabulary of one column has log-prob, entropy and gradient 0 at any temperature") {
  for (const double T : {1.0, 0.7, 3.0}) {
    const Dense dense{.logits = rows({{5}, {-300.25}}),
                      .targets = {0, 0},
                      .logprob_adjoint = {1, -2},
                      .entropy_adjoint = {0.5, 3},
                      .temperature = T};
    for (const DenseResult& r : {evaluate<float>(dense), evaluate<double>(dense)}) {
      CHECK((r.logprob.array() == 0).all());
      CHECK((r.entropy.array() == 0).all());
      CHECK((r.gradient.array() == 0).all());
    }
  }
}

}  // namespace losstape::testing
