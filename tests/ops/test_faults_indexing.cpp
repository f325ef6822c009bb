// SPDX-License-Identifier: Apache-2.0
// Faults that others met with labels, columns and shards, each as its minimal input and the right result.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "distributed/counting.h"
#include "distributed/threads.h"
#include "ops/losses/nll.h"
#include "ops/masked_reduce.h"
#include "ops/token_map.h"
#include "tests/ops/dense.h"
#include "tests/support/refusal.h"

namespace losstape::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPrinted = 1.5e-6;

}  // namespace

TEST_CASE("ignored rows count neither above nor below the mean") {  // B18
  const std::vector<std::int64_t> targets{0, -100, 1, -100};
  const std::vector<float> logits(8, 0.0F);
  std::vector<float> slice(8, 9.0F);
  // The mask is that of the labels.
  std::vector<float> mask;
  for (const std::int64_t target : targets) mask.push_back(target == -100 ? 0.0F : 1.0F);
  Tape tape({.audit = Audit::unwritten_rows});
  const Var z = tape.input(View(logits.data(), 4, 2), MutableView(slice.data(), 4, 2));
  const Var loss = masked_mean(-vocab_stats(z, targets, VocabShard::whole(2)).logprob, tape.constant(mask));
  tape.backward(loss);
  CHECK(std::abs(loss.item() - 0.693147) <= kPrinted);
  CHECK(near(Matrix(Eigen::Map<Eigen::Matrix<float, 4, 2, Eigen::RowMajor>>(slice.data()).cast<double>()),
             rows({{-0.25, 0.25}, {0, 0}, {0.25, -0.25}, {0, 0}}), 1e-7));
  for (const std::size_t at : {2U, 3U, 6U, 7U}) CHECK(slice[at] == 0);
}

TEST_CASE("a label outside the vocabulary is refused with row and value before anything is written") {  // B19
  for (const std::int64_t label :
       {std::int64_t{-1}, std::int64_t{-99}, std::int64_t{4}, std::int64_t{1000}, (std::int64_t{1} << 32) + 1}) {
    for (const int ranks : {1, 2}) {
      CAPTURE(label);
      CAPTURE(ranks);
      threads::run(ranks, [&](Communicator& group) {
        const VocabShard shard = VocabShard::even(group, 4);
        const std::vector<std::int64_t> targets{0, -100, label};
        const std::vector<float> logits(12, 0.5F);
        std::vector<float> slice(12, -3.0F);
        Tape tape;
        const Var z = tape.input(View(logits.data(), 3, shard.width()), MutableView(slice.data(), 3, shard.width()));
        const UsageError error = refusal([&] { (void)vocab_stats(z, targets, shard); });
        CHECK(error.row() == 2);
        check_says(error, std::to_string(label));
        check_says(error, "targets");
        CHECK(slice == std::vector<float>(12, -3.0F));
        // The group and the tape go on.
        const std::vector<std::int64_t> good{0, -100, 3};
        const std::vector<float> seed{1, 1, 1};
        tape.backward(vocab_stats(z, good, shard).logprob, seed);
        CHECK(slice[0] == (group.rank() == 0 ? 1 - 0.25F : -0.25F));
      });
    }
  }
}

TEST_CASE("a shard that is no multiple of a tile owns only its own columns") {  // B22
  Dense dense{.logits = row({1, 2, 3, 4, 5, 6}), .targets = {1}, .logprob_adjoint = {1}};
  for (const std::vector<Index>& cuts : std::vector<std::vector<Index>>{{}, {3}, {1, 3}, {2, 4}}) {
    dense.cuts = cuts;
    const DenseResult r = evaluate<double>(dense);
    CHECK(r.ranks_agree);
    CHECK(std::abs(r.logprob(0, 0) + 4.456193) <= kPrinted);
    CHECK(near(r.gradient, row({-0.00427, 0.988394, -0.03155, -0.085761, -0.233122, -0.633691}), 4e-6));
  }
}

TEST_CASE("padding columns take no probability and get no gradient, whatever they hold") {  // B23
  for (const double pad : {0.0, kNan, 1e30, std::numeric_limits<double>::infinity()}) {
    for (const std::vector<Index>& cuts : std::vector<std::vector<Index>>{{}, {2}, {3}, {1, 4}}) {
      CAPTURE(pad);
      CAPTURE(cuts.size());
      for (std::int64_t target = 0; target < 3; ++target) {
        const Dense dense{.logits = row({-5, -5, -5, pad}),
                          .targets = {target},
                          .vocab = 3,
                          .cuts = cuts,
                          .logprob_adjoint = {1},
                          .entropy_adjoint = {0.5}};
        const DenseResult r = evaluate<double>(dense);
        CHECK(std::abs(r.logprob(0, 0) + 1.098612289) <= 1e-9);
        CHECK(std::abs(r.entropy(0, 0) - std::log(3.0)) <= 1e-12);
        CHECK(std::bit_cast<std::uint64_t>(r.gradient(0, 3)) == 0);
        CHECK(std::abs(r.gradient(0, target) - 2.0 / 3) <= 1e-12);
      }
      const Dense beyond{.logits = row({-5, -5, -5, pad}), .targets = {3}, .vocab = 3, .cuts = cuts};
      check_says(refusal([&] { (void)evaluate<double>(beyond); }), "targets");
    }
  }
}

TEST_CASE("replicated logits handed in as shards are refused on every rank") {  // B25
  const std::vector<UsageError> errors = threads::run(2, [](Communicator& group) {
    const std::vector<float> logits{0, 0};
    const std::vector<std::int64_t> target{0};
    Tape tape;
    const Var z = tape.constant(View(logits.data(), 1, 2));
    return refusal([&] { (void)vocab_stats(z, target, VocabShard::range(group, 0, 2, 2)); });
  });
  for (const UsageError& error : errors) {
    check_says(error, "tile the vocabulary [0, 2) once");
    check_says(error, "replicated");
    CHECK(std::string(error.what()) == errors[0].what());
  }
}

TEST_CASE("shards that overlap or leave a gap are refused with the columns at fault") {
  struct Split {
    Index end, begin;  // of the first shard, of the second
    const char* fault;
  };
  for (const Split& split : {Split{1, 2, "columns [1, 2) held by no rank"}, Split{3, 2, "columns [2, 3) held twice"}}) {
    const auto errors = threads::run(2, [&](Communicator& group) {
      const VocabShard shard =
          group.rank() == 0 ? VocabShard::range(group, 0, split.end, 4) : VocabShard::range(group, split.begin, 4, 4);
      const std::vector<float> logits(4, 0.0F);
      const std::vector<std::int64_t> target{0};
      Tape tape;
      const Var z = tape.constant(View(logits.data(), 1, shard.width()));
      return refusal([&] { (void)vocab_stats(z, target, shard); });
    });
    for (const UsageError& error : errors) check_says(error, split.fault);
  }
}

TEST_CASE("adjoints of repeated gathered ids add up") {  // B27
  Dense dense{.logits = row({0, 0, 0}), .targets = {-100}, .gathered = {1, 1}, .gathered_adjoint = row({1, 2})};
  for (const std::vector<Index>& cuts : std::vector<std::vector<Index>>{{}, {1, 2}}) {
    dense.cuts = cuts;
    CHECK(near(evaluate<double>(dense).gradient, row({-1, 2, -1}), 1e-12));
    CHECK(near(evaluate<float>(dense).gradient, row({-1, 2, -1}), 2e-7));
  }
  // Beside the target at the same column, and from two places of three ids.
  dense.targets = {1};
  dense.logprob_adjoint = {4};
  dense.gathered = {1, 0, 1};
  dense.gathered_adjoint = row({1, -2, 0.5});
  CHECK(near(evaluate<double>(dense).gradient, row({-2 - 3.5 / 3, 5.5 - 3.5 / 3, -3.5 / 3}), 1e-12));
}

TEST_CASE("a call without tokens is an ordinary call with the collectives of any other") {  // B28
  threads::run(2, [](Communicator& group) {
    const auto step = [&](Index sequences) {
      CountingCommunicator counting(group);
      const VocabShard shard = VocabShard::even(counting, 4);
      const std::vector<std::int32_t> cu = sequences == 0 ? std::vector<std::int32_t>{0} : std::vector<std::int32_t>{0, 2};
      const std::vector<std::int64_t> ids(2, 1);
      const std::vector<float> logits(8, 0.0F);
      const std::vector<float> mask(2, 1.0F);
      std::vector<float> slice(8, -3.0F);
      Packing packing;
      packing.assign(cu);
      Tape tape({.audit = Audit::unwritten_rows});
      const Var z = tape.input(View(logits.data(), packing.rows(), 2), MutableView(slice.data(), packing.rows(), 2));
      const auto r = nll_loss(vocab_stats(z, packing, ids, shard), packing, {.token_mask = mask});
      tape.backward(r.loss);
      if (sequences == 0) {
        CHECK(r.loss.item() == 0);
        CHECK(r.metric("num_unmasked_tokens").value.item() == 0);
        CHECK(slice == std::vector<float>(8, -3.0F));
        CHECK(tape.gradient_complete(z));
      }
      return counting.step().calls;
    };
    const int empty = step(0);
    CHECK(empty == step(1));
    CHECK(empty == 1);
  });
}

}  // namespace losstape::testing
