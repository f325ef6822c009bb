// SPDX-License-Identifier: Apache-2.0
// Faults that others met over tensor and context ranks, each as its minimal input and the right result.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <mutex>

#include "distributed/counting.h"
#include "distributed/threads.h"
#include "ops/losses/nll.h"
#include "ops/masked_reduce.h"
#include "ops/sequence.h"
#include "ops/token_map.h"
#include "tests/ops/dense.h"
#include "tests/support/near.h"
#include "tests/support/refusal.h"

namespace losstape::testing {
namespace {

// A token column of a pack over context ranks, and what `loss_of` makes of it; results in global rows.
struct Shared {
  std::vector<double> gradient;
  std::vector<double> losses;  // a rank
};

template <class F>
Shared over_context(int ranks, const std::vector<double>& x, const F& loss_of) {
  Shared shared{std::vector<double>(x.size(), -9), {}};
  std::mutex merging;
  const std::vector<std::int64_t> cu{0, std::int64_t(x.size())};
  threads::run(ranks, [&](Communicator& group) {
    Packing packing;
    packing.assign(cu, ContextGroup(group), ContextLayout::contiguous);
    std::vector<double> mine;
    for (Index r = 0; r < packing.rows(); ++r) mine.push_back(x[std::size_t(packing.global_row(r))]);
    std::vector<double> slice(mine.size(), -9);
    const std::vector<double> ones(mine.size(), 1);
    TapeF64 tape({.audit = Audit::unwritten_rows});
    const VarF64 loss = loss_of(tape, tape.input(mine, slice), tape.constant(ones), packing);
    tape.backward(loss);
    const std::scoped_lock lock(merging);
    shared.losses.push_back(loss.item());
    for (Index r = 0; r < packing.rows(); ++r) shared.gradient[std::size_t(packing.global_row(r))] = slice[std::size_t(r)];
  });
  return shared;
}

}  // namespace

TEST_CASE("ranks with other options or labels than rank 0 are found out, on every rank") {
  const std::vector<double> logits(2 * 4, 0.5);
  const auto on_ranks = [&](const auto& change) {
    std::vector<std::string> said(3);
    threads::run(3, [&](Communicator& group) {
      const VocabShard shard =
          VocabShard::range(TensorGroup(group), group.rank(), group.rank() == 2 ? 4 : group.rank() + 1, 4);
      std::vector<double> slice(2 * 4, -9);
      std::vector<std::int64_t> targets{1, 2};
      VocabStatsOptions options;
      if (group.rank() == 1) change(targets, options);
      TapeF64 tape;
      const VarF64 z = tape.input(View(logits.data(), 2, shard.width(), 4), MutableView(slice.data(), 2, shard.width(), 4));
      const UsageError error = refusal([&] { (void)vocab_stats(z, targets, shard, options); });
      said[std::size_t(group.rank())] = error.what();
      CHECK(slice == std::vector<double>(2 * 4, -9));
    });
    CHECK(said[0].find("others on rank 1") != std::string::npos);
    CHECK(said[1] == said[0]);
    CHECK(said[2] == said[0]);
  };
  on_ranks([](auto&, auto& options) { options.temperature = 2; });
  on_ranks([](auto& targets, auto&) { targets[1] = 3; });
  on_ranks([](auto& targets, auto&) { targets[0] = -100; });
}

TEST_CASE("ranks that do not hold the target have its gradient all the same") {  // B39
  const Dense dense{.logits = row({0, 0, 0, 0}), .targets = {0}, .cuts = {2}, .logprob_adjoint = {1}};
  CHECK(near(evaluate<double>(dense).gradient, row({0.75, -0.25, -0.25, -0.25}), 0));
  CHECK(near(evaluate<float>(dense).gradient, row({0.75, -0.25, -0.25, -0.25}), 1e-7));
}

TEST_CASE("the number of tensor ranks does not scale a gradient") {  // B40
  Dense dense{.logits = row({0, 0, 0, 0}), .targets = {0}, .logprob_adjoint = {1}};
  const DenseResult single = evaluate<float>(dense);
  const std::vector<std::vector<Index>> splits{{2}, {1, 2, 3}};
  for (const std::vector<Index>& cuts : splits) {
    dense.cuts = cuts;
    const DenseResult found = evaluate<float>(dense);
    for (Index j = 0; j < 4; ++j) CHECK(found.gradient(0, j) / single.gradient(0, j) == 1.0);
  }
  // The entropy and gathered columns too.
  Dense other{.logits = row({2, -1, 0.5, 1}),
              .targets = {-100},
              .entropy_adjoint = {1},
              .gathered = {3},
              .gathered_adjoint = row({2})};
  const DenseResult alone = evaluate<double>(other);
  for (const std::vector<Index>& cuts : splits) {
    other.cuts = cuts;
    CHECK(near(evaluate<double>(other).gradient, alone.gradient, 1e-15));
  }
}

TEST_CASE("the number of context ranks enters neither a loss nor a weight") {  // B45
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const Shared found = over_context(ranks, {1, 2, 3}, [](auto& /*tape*/, auto x, auto mask, const Packing& packing) {
      return masked_mean(x, mask, packing);
    });
    for (const double loss : found.losses) CHECK(loss == relative(2, 1e-8));
    for (const double g : found.gradient) CHECK(g == relative(1.0 / 3, 1e-8));
  }
}

TEST_CASE("a reduction adds up over context ranks forward only, and spread backward only") {
  // mean = (1 + 2 + 3) / 3 = 2 is spread to every row; loss = Σ_r x_r · mean / 3, so dL/dx_r = mean/3 + (Σ x / 3) / 3.
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const Shared found = over_context(ranks, {1, 2, 3}, [](auto& /*tape*/, auto x, auto mask, const Packing& packing) {
      return masked_mean(x * spread(sequence_mean(x, mask, packing), packing), mask, packing);
    });
    for (const double loss : found.losses) CHECK(loss == relative(4, 1e-7));
    for (const double g : found.gradient) CHECK(g == relative(4.0 / 3, 1e-7));
    const Shared sums = over_context(ranks, {1, 2, 3}, [](auto& /*tape*/, auto x, auto mask, const Packing& packing) {
      return masked_mean(spread(sequence_sum(x, mask, packing), packing), mask, packing, {.count = 1});
    });
    for (const double loss : sums.losses) CHECK(loss == relative(18, 1e-7));
    for (const double g : sums.gradient) CHECK(g == relative(3, 1e-7));
  }
}

TEST_CASE("each reduction and each spread is one collective, in the direction that is documented") {
  const std::vector<std::int64_t> cu{0, 4};
  threads::run(2, [&](Communicator& group) {
    CountingCommunicator counting(group);
    Packing packing;
    packing.assign(cu, ContextGroup(counting), ContextLayout::contiguous);
    const std::vector<double> x(2, 1.5);
    const std::vector<double> ones(2, 1);
    std::vector<double> slice(2);
    TapeF64 tape;
    const auto calls_of = [&](auto f) {
      counting.reset();
      f();
      return counting.step().calls;
    };
    const VarF64 input = tape.input(x, slice);
    const VarF64 mask = tape.constant(ones);
    VarF64 mean;
    VarF64 loss;
    CHECK(calls_of([&] { mean = sequence_mean(input, mask, packing); }) == 1);
    CHECK(calls_of([&] { mean = spread(mean, packing); }) == 0);
    CHECK(calls_of([&] { loss = masked_mean(mean, mask, packing); }) == 1);
    CHECK(calls_of([&] { tape.backward(loss); }) == 1);  // spread's
    CHECK(counting.handshake().calls == 0);
  });
}

TEST_CASE("a context rank's last row predicts the next rank's first token") {  // B47
  const std::vector<std::int64_t> ids{5, 6, 7, 8};
  const std::vector<std::int64_t> cu{0, 4};
  const auto targets = threads::run(2, [&](Communicator& group) {
    Packing packing;
    packing.assign(cu, ContextGroup(group), ContextLayout::contiguous);
    std::vector<std::int64_t> mine;
    for (Index r = 0; r < packing.rows(); ++r) {
      const Index at = packing.target_row(r);
      mine.push_back(at < 0 ? -1 : ids[std::size_t(at)]);
    }
    return mine;
  });
  CHECK(targets[0] == std::vector<std::int64_t>{6, 7});
  CHECK(targets[1] == std::vector<std::int64_t>{8, -1});
}

TEST_CASE("a context rank with nothing to do takes part in every collective") {  // B49, and B34 over ranks
  const auto begun = std::chrono::steady_clock::now();
  for (const std::vector<std::int64_t>& cu : {std::vector<std::int64_t>{0, 4}, std::vector<std::int64_t>{0, 1}}) {
    const auto calls = threads::run(2, [&](Communicator& group) {
      CountingCommunicator counting(group);
      Packing packing;
      packing.assign(cu, ContextGroup(counting), ContextLayout::contiguous);
      const auto T = std::size_t(packing.rows());
      const std::vector<std::int64_t> ids(4, 1);
      const std::vector<double> token_mask{1, 1, 0, 0};
      const std::vector<double> logits(2 * T, 0.0);
      std::vector<double> slice(2 * T, -3);
      TapeF64 tape;
      const VarF64 z = tape.input(View(logits.data(), Index(T), 2), MutableView(slice.data(), Index(T), 2));
      const auto s = vocab_stats(z, packing, ids, VocabShard::whole(2));
      const auto r = nll_loss(s, packing, {.token_mask = token_mask}, {.tokens = 3});
      tape.backward(r.loss);
      const double right = cu[1] == 4 ? std::log(2.0) / (3 + 1e-8) : 0.0;
      CHECK(r.loss.item() == doctest::Approx(right));
      if (group.rank() == 1) {
        for (const double g : slice) CHECK(g == 0);
      }
      return counting.step().calls;
    });
    CHECK(calls[0] == calls[1]);
    CHECK(calls[0] == 1);
  }
  // An input error on one rank only: found in the reduction's join, the same on both.
  const std::vector<std::int64_t> cu{0, 4};
  const auto errors = threads::run(2, [&](Communicator& group) {
    Packing packing;
    packing.assign(cu, ContextGroup(group), ContextLayout::contiguous);
    std::vector<double> x{1, 2};
    if (group.rank() == 1) x[1] = std::nan("");
    std::vector<double> slice(2, -3);
    const std::vector<double> ones(2, 1);
    TapeF64 tape;
    const VarF64 input = tape.input(x, slice);
    const VarF64 mask = tape.constant(ones);
    const UsageError error = refusal([&] { (void)masked_mean(input, mask, packing); });
    const UsageError again = refusal([&] { (void)sequence_mean(input, mask, packing); });
    CHECK(std::string(again.what()).find("on rank 1") != std::string::npos);
    CHECK(slice == std::vector<double>{-3, -3});
    return error;
  });
  check_says(errors[0], "on rank 1");
  CHECK(std::string(errors[0].what()) == errors[1].what());
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(10));
}

}  // namespace losstape::testing
