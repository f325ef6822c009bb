// SPDX-License-Identifier: Apache-2.0
// What vocab_stats promises beside its values: collectives, memory, layouts of its inputs, options.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "distributed/counting.h"
#include "distributed/threads.h"
#include "ops/token_map.h"
#include "ops/vocab_stats.h"
#include "tests/ops/adversarial.h"
#include "tests/ops/dense.h"
#include "tests/support/near.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"

namespace losstape::testing {
namespace {

std::vector<float> noise(Index count, std::uint64_t seed = 4) {
  Random random(seed);
  std::vector<float> x;
  for (Index at = 0; at < count; ++at) x.push_back(float(2 * random.normal()));
  return x;
}

// Whole ulps of fp32 between two numbers.
double ulps(double a, double b) {
  const double larger = std::max(std::abs(a), std::abs(b));
  return larger == 0 ? 0 : std::abs(a - b) / std::ldexp(1.0, std::ilogb(larger) - 23);
}

}  // namespace

TEST_CASE("any number of outputs is one collective forward and none backward, and a layout shakes hands once") {
  threads::run(3, [](Communicator& group) {
    CountingCommunicator counting(group);
    const VocabShard shard = VocabShard::even(counting, 20);
    const Index T = 6;
    const Index K = 2;
    const std::vector<float> logits = noise(T * shard.width());
    std::vector<float> slice(logits.size());
    const std::vector<std::int64_t> targets{1, 2, 3, 4, -100, 19};
    const std::vector<std::int64_t> ids(std::size_t(T * K), 7);
    Tape tape;
    for (int step = 0; step < 3; ++step) {
      counting.reset();
      tape.clear();
      const Var z = tape.input(View(logits.data(), T, shard.width()), MutableView(slice.data(), T, shard.width()));
      const auto s = vocab_stats(z, targets, shard, {.entropy = true, .lse = true, .gathered = View(ids.data(), T, K)});
      CHECK(counting.step().calls == 1);
      // 32 bytes a row and 8 a gathered column, and the header.
      const std::size_t header = Communicator::joined_bytes(3, 0);
      CHECK(counting.step().bytes == header + std::size_t(T) * 32 + std::size_t(T * K) * 8);
      CHECK(counting.handshake().calls == (step == 0 ? 1 : 0));
      const std::vector<float> seed(std::size_t(T), 1.0F);
      tape.backward(s.logprob + s.entropy + s.lse, seed);
      CHECK(counting.step().calls == 1);
    }
  });
}

TEST_CASE("saved state is under 40 bytes a row, and nothing has the size of the vocabulary") {
  const auto memory_of = [](Index V) {
    const Index T = 64;
    const std::vector<float> logits = noise(T * V);
    std::vector<float> slice(logits.size());
    const std::vector<std::int64_t> targets(std::size_t(T), 0);
    Tape tape;
    const Var z = tape.input(View(logits.data(), T, V), MutableView(slice.data(), T, V));
    const auto s = vocab_stats(z, targets, VocabShard::whole(V), {.entropy = true, .lse = true});
    const std::vector<float> seed(std::size_t(T), 1.0F);
    tape.backward(s.logprob + s.entropy + s.lse, seed);
    CHECK(tape.records()[0].saved_bytes <= std::size_t(T) * 40);
    return tape.arena().peak();
  };
  const std::size_t small = memory_of(3);
  CHECK(memory_of(5000) == small);
  CHECK(memory_of(20000) == small);
}

TEST_CASE("log-probs over any number of shards differ by 4 ulps at most") {
  const std::vector<AdversarialRow> table = adversarial_rows(9001, 1e38);
  Dense dense{.logits = Matrix(Index(table.size()), 9001), .targets = {}, .dtype = DType::f32};
  for (std::size_t r = 0; r < table.size(); ++r) {
    for (Index j = 0; j < 9001; ++j) dense.logits(Index(r), j) = table[r].logits[std::size_t(j)];
    dense.targets.push_back(table[r].target);
  }
  const DenseResult single = evaluate<float>(dense);
  double most = 0;
  for (const std::vector<Index>& cuts : std::vector<std::vector<Index>>{
           {4500}, {3000, 6000}, {2250, 4500, 6751}, {1125, 2250, 3375, 4500, 5625, 6750, 7876}, {4096}, {1, 4096, 8192}}) {
    dense.cuts = cuts;
    const DenseResult found = evaluate<float>(dense);
    CHECK(found.ranks_agree);
    for (std::size_t r = 0; r < table.size(); ++r) {
      CAPTURE(table[r].name);
      const double apart = ulps(found.logprob(Index(r), 0), single.logprob(Index(r), 0));
      CHECK(apart <= 4);
      most = std::max(most, apart);
    }
  }
  MESSAGE("over numbers of shards log-probs differ by " << most << " ulps at most");
}

TEST_CASE("logits and slices may be columns of wider buffers") {
  const Index T = 5;
  const Index V = 7;
  const std::vector<float> logits = noise(T * V);
  const std::vector<std::int64_t> targets{0, 1, 2, 3, 4};
  const std::vector<float> seed(std::size_t(T), 1.0F);
  const auto run = [&](const View& value, const MutableView& slice) {
    Tape tape({.audit = Audit::unwritten_rows});
    tape.backward(vocab_stats(tape.input(value, slice), targets, VocabShard::whole(V)).logprob, seed);
  };
  std::vector<float> right(logits.size());
  run(View(logits.data(), T, V), MutableView(right.data(), T, V));
  std::vector<float> wide(std::size_t(T * 12), std::numeric_limits<float>::quiet_NaN());
  std::vector<float> wide_slice(std::size_t(T * 15), -7.0F);
  for (Index r = 0; r < T; ++r) std::copy_n(logits.data() + r * V, V, wide.data() + r * 12 + 3);
  run(View(wide.data() + 3, T, V, 12), MutableView(wide_slice.data() + 6, T, V, 15));
  for (Index r = 0; r < T; ++r) {
    for (Index c = 0; c < 15; ++c) {
      const float found = wide_slice[std::size_t(r * 15 + c)];
      CHECK(found == (c < 6 || c >= 6 + V ? -7.0F : right[std::size_t(r * V + c - 6)]));
    }
  }
}

TEST_CASE("targets may be int32 or int64, and a strided column") {
  const std::vector<float> logits = noise(6);
  const std::vector<std::int32_t> narrow{2, 0};
  const std::vector<std::int64_t> strided{2, 99, 0, 99};
  Tape tape;
  const Var z = tape.constant(View(logits.data(), 2, 3));
  const View a = tape.value(vocab_stats(z, narrow, VocabShard::whole(3)).logprob);
  const View b = tape.value(vocab_stats(z, View(strided.data(), 2, 1, 2), VocabShard::whole(3)).logprob);
  for (Index r = 0; r < 2; ++r) CHECK(a.get<float>(r) == b.get<float>(r));
}

TEST_CASE("fp64 logits belong on the fp64 tape, which widens every other type") {
  const std::vector<double> wide{1, 2};
  std::vector<double> slice(2);
  const std::vector<std::int64_t> target{0};
  Tape tape;
  std::vector<float> narrow_slice(2);
  check_says(refusal([&] { (void)tape.input(View(wide.data(), 1, 2), MutableView(narrow_slice.data(), 1, 2)); }), "TapeF64");
  const std::vector<BFloat16> half{BFloat16(1.0F), BFloat16(2.0F)};
  TapeF64 f64;
  const VarF64 z = f64.input(View(half.data(), 1, 2), MutableView(slice.data(), 1, 2));
  const VarF64 logp = vocab_stats(z, target, VocabShard::whole(2)).logprob;
  CHECK(logp.item() == relative(-std::log1p(std::exp(1.0)), 1e-15));
}

TEST_CASE("an output that was not asked for names its option at every use") {
  const std::vector<float> logits = noise(4);
  const std::vector<std::int64_t> targets{0, 1};
  Tape tape;
  const auto s = vocab_stats(tape.constant(View(logits.data(), 2, 2)), targets, VocabShard::whole(2));
  for (const auto& [var, option] : {std::pair{s.entropy, "entropy"}, {s.gathered, "gathered"}, {s.lse, "lse"}}) {
    CHECK_FALSE(bool(var));
    const Var output = var;
    check_says(refusal([&] { (void)output.rows(); }), option);
    check_says(refusal([&] { (void)(output + s.logprob); }), option);
    check_says(refusal([&] { (void)tape.value(output); }), option);
  }
}

TEST_CASE("rows that are masked out of the extra outputs are 0 there and keep their log-prob") {
  const std::vector<float> logits = noise(12);
  const std::vector<std::int64_t> targets{0, 1, 2, -100};
  const std::vector<std::uint8_t> rows_mask{1, 0, 1, 0};
  const std::vector<std::int64_t> ids{0, 5, 1, 5};  // rows 1 and 3 are not looked at
  Tape tape;
  const auto s = vocab_stats(tape.constant(View(logits.data(), 4, 3)), targets, VocabShard::whole(3),
                             {.entropy = true, .lse = true, .gathered = View(ids.data(), 4, 1), .rows = rows_mask});
  for (const Index r : {1, 3}) {
    CHECK(tape.value(s.entropy).get<float>(r) == 0);
    CHECK(tape.value(s.lse).get<float>(r) == 0);
    CHECK(tape.value(s.gathered).get<float>(r) == 0);
  }
  CHECK(tape.value(s.logprob).get<float>(1) < 0);
  CHECK(tape.value(s.logprob).get<float>(3) == 0);
  CHECK(tape.value(s.entropy).get<float>(2) > 0);
}

}  // namespace losstape::testing
