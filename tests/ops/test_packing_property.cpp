// SPDX-License-Identifier: Apache-2.0
// Random layouts: no sequence's logits reach another's row, padding is never read, context ranks share rows out exactly
// once.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "distributed/threads.h"
#include "ops/losses/policy_loss.h"
#include "ops/sequence.h"
#include "ops/token_map.h"
#include "ops/vocab_stats.h"
#include "tests/support/random.h"

namespace losstape::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Pack {
  Index vocab = 1;
  std::vector<std::int64_t> cu{0};
  std::vector<std::int64_t> padded{0};
  bool narrow = false;  // int32 offsets
  std::vector<std::int32_t> cu32;
  std::vector<std::int32_t> padded32;
  Index rows = 0;  // of the buffer
  std::vector<std::int64_t> ids;
  std::vector<float> logits;
  std::vector<float> seed;

  [[nodiscard]] Index sequences() const { return Index(cu.size()) - 1; }
  [[nodiscard]] Index length(Index b) const { return cu[std::size_t(b) + 1] - cu[std::size_t(b)]; }
  void assign(Packing& packing) const {
    if (narrow) {
      packing.assign(cu32, padded32);
    } else {
      packing.assign(cu, padded);
    }
  }
};

Pack random_pack(Random& random, Index multiple = 1) {
  Pack pack;
  pack.vocab = random.between(1, 6);
  const bool pads = random.chance(0.6);
  const Index sequences = random.below(6);
  for (Index b = 0; b < sequences; ++b) {
    const Index length = random.chance(0.3) ? random.below(2) : random.below(7);
    Index rows = length + (pads ? random.below(4) : 0);
    rows = (rows + multiple - 1) / multiple * multiple;
    pack.cu.push_back(pack.cu.back() + length);
    pack.padded.push_back(pack.padded.back() + rows);
  }
  pack.cu32.assign(pack.cu.begin(), pack.cu.end());
  pack.padded32.assign(pack.padded.begin(), pack.padded.end());
  pack.narrow = random.chance(0.5);
  pack.rows = pack.padded.back() + random.below(3);
  for (Index g = 0; g < pack.padded.back(); ++g) pack.ids.push_back(random.below(pack.vocab));
  for (Index at = 0; at < pack.rows * pack.vocab; ++at) pack.logits.push_back(float(random.normal()));
  for (Index g = 0; g < pack.padded.back(); ++g) pack.seed.push_back(float(random.adjoint()));
  return pack;
}

// Every per-token output and the whole slice of one evaluation.
struct Result {
  std::vector<float> outputs;  // [rows, 3]
  std::vector<float> slice;
};

void evaluate(Tape& tape, Packing& packing, const Pack& pack, Result& result) {
  pack.assign(packing);
  result.slice.assign(std::size_t(pack.rows * pack.vocab), kNan);
  tape.clear();
  const Var z =
      tape.input(View(pack.logits.data(), pack.rows, pack.vocab), MutableView(result.slice.data(), pack.rows, pack.vocab));
  const auto s = vocab_stats(z, packing, pack.ids, VocabShard::whole(pack.vocab), {.entropy = true, .lse = true});
  const Var y = token_map([](auto l, auto H, auto lse) { return l + 0.5 * H - 0.25 * lse; }, s.logprob, s.entropy, s.lse);
  tape.backward(y, pack.seed);
  result.outputs.clear();
  for (const Var& output : {s.logprob, s.entropy, s.lse}) {
    const View view = tape.value(output);
    for (Index r = 0; r < view.rows; ++r) result.outputs.push_back(view.get<float>(r));
  }
}

bool same(const float* a, const float* b, Index count) {
  return count == 0 || std::memcmp(a, b, std::size_t(count) * sizeof(float)) == 0;
}

// Rows of `pack` in which the two results differ, of those for which `counts` holds.
Index first_difference(const Pack& pack, const Result& a, const Result& b, const auto& counts) {
  const Index packed = pack.padded.back();
  for (Index r = 0; r < pack.rows; ++r) {
    if (!counts(r)) continue;
    if (!same(&a.slice[std::size_t(r * pack.vocab)], &b.slice[std::size_t(r * pack.vocab)], pack.vocab)) return r;
    for (Index k = 0; k < 3 && r < packed; ++k) {
      if (!same(&a.outputs[std::size_t(k * packed + r)], &b.outputs[std::size_t(k * packed + r)], 1)) return r;
    }
  }
  return -1;
}

}  // namespace

TEST_CASE("over 10000 random layouts a change of one sequence's logits changes no bit of any other row") {
  Random random(2024);
  Tape tape({.non_finite = NonFinite::propagate, .audit = Audit::unwritten_rows});
  Packing packing;
  Result before;
  Result after;
  for (int turn = 0; turn < 10000; ++turn) {
    CAPTURE(turn);
    Pack pack = random_pack(random);
    evaluate(tape, packing, pack, before);
    const auto is_padding = [&](Index r) {
      for (Index b = 0; b < pack.sequences(); ++b) {
        const Index first = pack.padded[std::size_t(b)];
        if (first <= r && r < first + pack.length(b)) return false;
      }
      return true;
    };
    // Padding: exact zeros, and rows without a target have no log-prob.
    for (Index r = 0; r < pack.rows; ++r) {
      if (!is_padding(r)) continue;
      for (Index j = 0; j < pack.vocab; ++j) {
        REQUIRE(std::bit_cast<std::uint32_t>(before.slice[std::size_t(r * pack.vocab + j)]) == 0);
      }
    }
    // Everything that is not sequence `changed`, or padding, gets other contents.
    const Index changed = pack.sequences() > 0 ? random.below(pack.sequences()) : -1;
    const auto is_changed = [&](Index r) {
      return changed >= 0 && pack.padded[std::size_t(changed)] <= r && r < pack.padded[std::size_t(changed) + 1];
    };
    const Index kind = random.below(4);
    for (Index r = 0; r < pack.rows; ++r) {
      if (!is_changed(r) && !is_padding(r)) continue;
      for (Index j = 0; j < pack.vocab; ++j) {
        float& x = pack.logits[std::size_t(r * pack.vocab + j)];
        x = kind == 0 ? kNan : kind == 1 ? 1e30F : kind == 2 ? -std::numeric_limits<float>::infinity() : x + 1;
      }
    }
    evaluate(tape, packing, pack, after);
    REQUIRE(first_difference(pack, before, after, [&](Index r) { return !is_changed(r); }) == -1);
    REQUIRE(first_difference(pack, before, after, [&](Index r) { return is_padding(r); }) == -1);
  }
}

TEST_CASE("over random layouts the packing's rows are those of the definition") {
  Random random(7);
  Packing packing;
  for (int turn = 0; turn < 3000; ++turn) {
    CAPTURE(turn);
    const Pack pack = random_pack(random);
    pack.assign(packing);
    REQUIRE(packing.rows() == pack.padded.back());
    Index b = 0;
    for (Index g = 0; g < pack.rows; ++g) {
      while (b < pack.sequences() && g >= pack.padded[std::size_t(b) + 1]) ++b;
      const bool inside = b < pack.sequences();
      const Index position = inside ? g - pack.padded[std::size_t(b)] : 0;
      REQUIRE(packing.is_real(g) == (inside && position < pack.length(b)));
      REQUIRE(packing.target_row(g) == (inside && position + 1 < pack.length(b) ? g + 1 : -1));
      if (inside) REQUIRE(packing.sequence(g) == b);
      if (inside) REQUIRE(packing.global_row(g) == g);
    }
  }
}

TEST_CASE("over random layouts context ranks hold every row of the pack exactly once, with the targets of one rank") {
  Random random(31);
  for (int turn = 0; turn < 400; ++turn) {
    CAPTURE(turn);
    const int ranks = int(random.between(1, 4));
    const bool zigzag = random.chance(0.5);
    const Pack pack = random_pack(random, zigzag && ranks > 1 ? 2 * ranks : 1);
    Packing whole;
    pack.assign(whole);
    std::vector<int> held(std::size_t(pack.padded.back()), 0);
    std::vector<std::string> faults;
    std::mutex merging;
    threads::run(ranks, [&](Communicator& group) {
      Packing packing;
      packing.assign(pack.cu, pack.padded, group, zigzag ? ContextLayout::zigzag : ContextLayout::contiguous);
      const std::scoped_lock lock(merging);
      Index before = -1;
      for (Index r = 0; r < packing.rows(); ++r) {
        const Packing::Place at = packing.place(r);
        const Packing::Place right = whole.place(at.global);
        ++held[std::size_t(at.global)];
        if (at.global <= before) faults.emplace_back("rows out of order");
        before = at.global;
        if (at.sequence != right.sequence || at.position != right.position) faults.emplace_back("another place");
        if (packing.target_row(r) != whole.target_row(at.global)) faults.emplace_back("another target");
        if (packing.is_real(r) != whole.is_real(at.global)) faults.emplace_back("real or not");
        if (r < packing.first_row(at.sequence) || r >= packing.last_row(at.sequence))
          faults.emplace_back("outside its rows");
      }
    });
    REQUIRE(faults.empty());
    REQUIRE(held == std::vector<int>(held.size(), 1));
  }
}

TEST_CASE("over random layouts a loss and its gradient over context ranks are those of one rank") {
  Random random(77);
  for (int turn = 0; turn < 150; ++turn) {
    CAPTURE(turn);
    const int ranks = int(random.between(2, 4));
    const bool zigzag = random.chance(0.5);
    const Pack pack = random_pack(random, zigzag ? 2 * ranks : 1);
    const Index tokens = pack.padded.back();
    std::vector<float> mask;
    std::vector<float> advantages;
    for (Index g = 0; g < tokens; ++g) mask.push_back(random.chance(0.8) ? 1 : 0);
    for (Index g = 0; g < tokens; ++g) advantages.push_back(float(random.normal()));
    const std::vector<float> prev(std::size_t(tokens), -1.0F);
    // Through every node that joins context ranks: a sequence mean, its spread, and the loss.
    const auto loss_of = [&](Tape& tape, Var z, const Packing& packing) {
      const Var logp = vocab_stats(z, packing, pack.ids, VocabShard::whole(pack.vocab)).logprob;
      const Var t = tape.constant(packing.to_predictions(mask));
      const Var sums = spread(exp(sequence_mean(logp, t, packing)), packing);
      const auto r =
          policy_loss(logp * 0.5 + sums, packing, {.token_mask = mask, .advantages = advantages, .prev_logprobs = prev},
                      PolicyLossOptions::dapo());
      tape.backward(r.loss);
      return double(r.loss.item());
    };
    std::vector<float> right(pack.logits.size(), kNan);
    Packing whole;
    pack.assign(whole);
    Tape single({.audit = Audit::unwritten_rows});
    const double loss = loss_of(
        single,
        single.input(View(pack.logits.data(), pack.rows, pack.vocab), MutableView(right.data(), pack.rows, pack.vocab)),
        whole);
    std::vector<float> found(pack.logits.size(), 0.0F);
    std::vector<double> losses;
    std::mutex merging;
    threads::run(ranks, [&](Communicator& group) {
      Packing packing;
      packing.assign(pack.cu, pack.padded, group, zigzag ? ContextLayout::zigzag : ContextLayout::contiguous);
      const Index V = pack.vocab;
      std::vector<float> logits;
      for (Index r = 0; r < packing.rows(); ++r) {
        const auto* row = pack.logits.data() + packing.global_row(r) * V;
        logits.insert(logits.end(), row, row + V);
      }
      std::vector<float> slice(logits.size(), kNan);
      Tape tape({.audit = Audit::unwritten_rows});
      const double mine = loss_of(
          tape, tape.input(View(logits.data(), packing.rows(), V), MutableView(slice.data(), packing.rows(), V)), packing);
      const std::scoped_lock lock(merging);
      losses.push_back(mine);
      for (Index r = 0; r < packing.rows(); ++r) {
        std::copy_n(slice.data() + r * V, V, found.data() + packing.global_row(r) * V);
      }
    });
    float largest = 0;
    for (const float g : right) largest = std::max(largest, std::abs(g));
    for (const double mine : losses) REQUIRE(std::abs(mine - loss) <= 0x1p-22 * (std::abs(loss) + 1e-3));
    for (std::size_t at = 0; at < right.size(); ++at) REQUIRE(std::abs(found[at] - right[at]) <= 0x1p-21F * largest);
  }
}

}  // namespace losstape::testing
