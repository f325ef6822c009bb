// SPDX-License-Identifier: Apache-2.0
// Rows without a distribution, and values that are not finite: named where they count, passed on where asked, 0 where
// masked.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "distributed/threads.h"
#include "ops/losses/policy_loss.h"
#include "ops/masked_reduce.h"
#include "ops/sequence.h"
#include "ops/token_map.h"
#include "ops/vocab_stats.h"
#include "tests/ops/dense.h"
#include "tests/support/refusal.h"

namespace losstape::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// One sequence of four tokens over four columns; row 1 is made bad.
struct Setup {
  std::vector<float> logits;
  std::vector<std::int64_t> ids{0, 1, 2, 3};
  std::vector<std::int64_t> cu{0, 4};
  std::vector<float> mask{1, 1, 1, 1};
  std::vector<float> slice = std::vector<float>(16, -7.0F);
  Packing packing;

  Setup() {
    for (int at = 0; at < 16; ++at) logits.push_back(0.25F * float((at * 7) % 5) - 0.5F);
    packing.assign(cu);
  }
  Var input(Tape& tape) { return tape.input(View(logits.data(), 4, 4), MutableView(slice.data(), 4, 4)); }
  Var loss(Tape& tape, Var value) {
    return masked_mean(value, tape.constant(packing.to_predictions(mask)), packing, {.count = 3});
  }
  Var logprob_loss(Tape& tape) { return loss(tape, vocab_stats(input(tape), packing, ids, VocabShard::whole(4)).logprob); }
};

struct Bad {
  const char* what;
  std::array<float, 4> row;  // row 1 predicts token 2, whose id is 2
  const char* cause;
};
const std::vector<Bad>& bad_rows() {
  static const std::vector<Bad> list{
      {"a NaN", {0, kNan, 1, 0}, "the logits of the row hold a NaN"},
      {"a NaN at the target", {0, 1, kNan, 0}, "the logits of the row hold a NaN"},
      {"NaN among -inf", {-kInf, kNan, -kInf, -kInf}, "the logits of the row hold a NaN"},
      {"+inf", {0, kInf, 1, 0}, "the logits of the row hold +inf"},
      {"-inf alone", {-kInf, -kInf, -kInf, -kInf}, "every logit of the row is -inf"},
      {"a target of -inf", {0, 1, -kInf, 0}, "the target's logit is -inf"},
  };
  return list;
}

}  // namespace

TEST_CASE("a row that counts and has no finite log-prob is an error that names row, node and cause") {
  for (const Bad& bad : bad_rows()) {
    CAPTURE(bad.what);
    Setup setup;
    std::copy(bad.row.begin(), bad.row.end(), setup.logits.begin() + 4);
    Tape tape;
    const UsageError error = refusal([&] { (void)setup.logprob_loss(tape); });
    CHECK(error.row() == 1);
    check_says(error, "masked_reduce");
    check_says(error, std::string("vocab_stats made it: ") + bad.cause);
    CHECK(setup.slice == std::vector<float>(16, -7.0F));
    // Through nodes in between it is still vocab_stats that made it.
    Tape other;
    const UsageError later = refusal([&] {
      const Var logp = vocab_stats(setup.input(other), setup.packing, setup.ids, VocabShard::whole(4)).logprob;
      (void)setup.loss(other, exp(logp * 2.0) - logp);
    });
    check_says(later, bad.cause);
  }
}

TEST_CASE("a row that is masked out is worth 0 and has gradient exactly 0, whatever it holds") {
  Setup clean;
  clean.mask[2] = 0;  // token 2, which row 1 predicts
  Tape plain;
  const Var right = clean.logprob_loss(plain);
  plain.backward(right);
  for (const NonFinite policy : {NonFinite::error, NonFinite::propagate}) {
    for (const Bad& bad : bad_rows()) {
      CAPTURE(bad.what);
      Setup setup;
      setup.mask[2] = 0;
      std::copy(bad.row.begin(), bad.row.end(), setup.logits.begin() + 4);
      Tape tape({.non_finite = policy, .audit = Audit::unwritten_rows});
      const Var loss = setup.logprob_loss(tape);
      tape.backward(loss);
      CHECK(loss.item() == right.item());
      CHECK(setup.slice == clean.slice);
      for (std::size_t at = 4; at < 8; ++at) CHECK(std::bit_cast<std::uint32_t>(setup.slice[at]) == 0);
    }
  }
}

TEST_CASE("a ratio that overflows behind a mask stays out of loss, gradient and metrics") {
  for (const Bad& bad : bad_rows()) {
    CAPTURE(bad.what);
    Setup setup;
    setup.mask[2] = 0;
    std::copy(bad.row.begin(), bad.row.end(), setup.logits.begin() + 4);
    const std::vector<float> prev{-1, -1, kNan, -1};
    const std::vector<float> advantages{1, 1, kInf, -1};
    Tape tape({.audit = Audit::unwritten_rows});
    const auto s = vocab_stats(setup.input(tape), setup.packing, setup.ids, VocabShard::whole(4));
    const auto r = policy_loss(s, setup.packing,
                               {.token_mask = setup.mask,
                                .advantages = advantages,
                                .prev_logprobs = prev,
                                .generation_logprobs = prev,
                                .reference_logprobs = prev});
    tape.backward(r.loss);
    for (const auto& metric : r.metrics()) CHECK(std::isfinite(metric.value.item()));
    for (const float g : setup.slice) CHECK(std::isfinite(g));
  }
}

TEST_CASE("propagated, a NaN fills its own row and the loss, and every other row keeps its bits") {
  Setup clean;
  Tape plain;
  plain.backward(clean.logprob_loss(plain));
  for (const Bad& bad : bad_rows()) {
    const bool masked_target = std::string(bad.what) == "a target of -inf";
    CAPTURE(bad.what);
    Setup setup;
    std::copy(bad.row.begin(), bad.row.end(), setup.logits.begin() + 4);
    Tape tape({.non_finite = NonFinite::propagate, .audit = Audit::unwritten_rows});
    const Var loss = setup.logprob_loss(tape);
    CHECK_FALSE(std::isfinite(loss.item()));
    tape.backward(loss);
    for (std::size_t at = 0; at < 16; ++at) {
      if (at / 4 != 1) CHECK(setup.slice[at] == clean.slice[at]);
      if (at / 4 == 1 && !masked_target) CHECK(std::isnan(setup.slice[at]));
    }
  }
}

TEST_CASE("a backward that brings a row without a distribution an adjoint is refused before the slice is touched") {
  for (const int ranks : {1, 2}) {
    for (const Bad& bad : bad_rows()) {
      if (std::string(bad.what) == "a target of -inf") continue;  // that row has a distribution
      CAPTURE(bad.what);
      const std::vector<std::string> words = threads::run(ranks, [&](Communicator& group) {
        Setup setup;
        std::copy(bad.row.begin(), bad.row.end(), setup.logits.begin() + 4);
        const VocabShard shard = VocabShard::even(group, 4);
        std::vector<float> mine;
        for (Index r = 0; r < 4; ++r) {
          for (Index c = shard.begin; c < shard.end; ++c) mine.push_back(setup.logits[std::size_t(4 * r + c)]);
        }
        std::vector<float> slice(mine.size(), -7.0F);
        Tape tape;
        const Var z = tape.input(View(mine.data(), 4, shard.width()), MutableView(slice.data(), 4, shard.width()));
        const auto s = vocab_stats(z, setup.packing, setup.ids, shard, {.entropy = true});
        std::vector<float> seed{1, 0, 1, 0};
        tape.backward(s.entropy, seed);  // the bad row is not needed
        std::fill(slice.begin(), slice.end(), -7.0F);
        seed[1] = 0.5F;
        const UsageError error = refusal([&] { tape.backward(s.entropy, seed); });
        CHECK(error.row() == 1);
        check_says(error, bad.cause);
        CHECK(slice == std::vector<float>(slice.size(), -7.0F));
        CHECK_FALSE(tape.gradient_complete(z));
        return std::string(error.what());
      });
      for (const std::string& word : words) CHECK(word == words[0]);
    }
  }
}

TEST_CASE("sequence means name the row and the cause too") {
  for (const Bad& bad : bad_rows()) {
    CAPTURE(bad.what);
    Setup setup;
    std::copy(bad.row.begin(), bad.row.end(), setup.logits.begin() + 4);
    const auto mean = [&](Tape& tape) {
      const Var logp = vocab_stats(setup.input(tape), setup.packing, setup.ids, VocabShard::whole(4)).logprob;
      return sequence_mean(logp, tape.constant(setup.packing.to_predictions(setup.mask)), setup.packing);
    };
    Tape tape;
    const UsageError error = refusal([&] { (void)mean(tape); });
    CHECK(error.row() == 1);
    check_says(error, bad.cause);
    Tape lenient({.non_finite = NonFinite::propagate});
    CHECK_FALSE(std::isfinite(mean(lenient).item()));
  }
}

TEST_CASE("padding columns and rows that nobody needs are not looked at") {
  Setup setup;
  // Row 3 is the sequence's last: no target. Its logits are never read for a log-prob.
  std::fill(setup.logits.begin() + 12, setup.logits.end(), kNan);
  Tape tape({.audit = Audit::unwritten_rows});
  const Var loss = setup.logprob_loss(tape);
  tape.backward(loss);
  CHECK(std::isfinite(loss.item()));
  for (std::size_t at = 12; at < 16; ++at) CHECK(std::bit_cast<std::uint32_t>(setup.slice[at]) == 0);
}

}  // namespace losstape::testing
