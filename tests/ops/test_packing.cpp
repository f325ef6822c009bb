// SPDX-License-Identifier: Apache-2.0
// Packing: what its offsets say of every row, what it refuses, and how a change in flight is found.
#include <doctest/doctest.h>

#include <bit>
#include <limits>

#include "distributed/threads.h"
#include "engine/error.h"
#include "ops/masked_reduce.h"
#include "ops/packing.h"
#include "ops/sequence.h"
#include "ops/token_map.h"
#include "ops/vocab_stats.h"
#include "tests/support/refusal.h"

namespace losstape::testing {
namespace {

std::vector<Index> targets_of(const Packing& packing, Index rows) {
  std::vector<Index> list;
  for (Index r = 0; r < rows; ++r) list.push_back(packing.target_row(r));
  return list;
}

template <class T>
Packing pack(const std::vector<T>& cu) {
  Packing packing;
  packing.assign(cu);
  return packing;
}

template <class T>
Packing pack(const std::vector<T>& cu, const std::vector<T>& padded) {
  Packing packing;
  packing.assign(cu, padded);
  return packing;
}

}  // namespace

TEST_CASE("a row predicts the next token of its own sequence") {
  const Packing packing = pack<std::int32_t>({0, 3, 5});
  CHECK(packing.sequences() == 2);
  CHECK(packing.tokens() == 5);
  CHECK(packing.rows() == 5);
  CHECK(targets_of(packing, 7) == std::vector<Index>{1, 2, -1, 4, -1, -1, -1});
  CHECK(packing.sequence(2) == 0);
  CHECK(packing.sequence(3) == 1);
  CHECK(packing.is_real(4));
  CHECK_FALSE(packing.is_real(5));
}

TEST_CASE("padded offsets move rows, and padding rows predict nothing") {
  const Packing packing = pack<std::int64_t>({0, 2, 4}, {0, 3, 7});
  CHECK(packing.tokens() == 7);
  CHECK(targets_of(packing, 7) == std::vector<Index>{1, -1, -1, 4, -1, -1, -1});
  CHECK(packing.is_real(1));
  CHECK_FALSE(packing.is_real(2));
  CHECK(packing.is_real(4));
  CHECK_FALSE(packing.is_real(5));
  CHECK(packing.length(1) == 2);
  CHECK(packing.first_row(1) == 3);
  CHECK(packing.last_row(1) == 7);
}

TEST_CASE("int32 and int64 offsets say the same, and so does a column view with a stride") {
  const std::vector<std::int64_t> strided{0, 99, 3, 99, 5, 99};
  Packing packing;
  packing.assign(View(strided.data(), 3, 1, 2));
  for (const Packing& other : {pack<std::int32_t>({0, 3, 5}), pack<std::int64_t>({0, 3, 5})}) {
    CHECK(targets_of(other, 5) == targets_of(packing, 5));
  }
}

TEST_CASE("empty and one-token sequences have rows and predict nothing") {
  const Packing packing = pack<std::int32_t>({0, 0, 1, 1, 3, 3});
  CHECK(packing.sequences() == 5);
  CHECK(targets_of(packing, 3) == std::vector<Index>{-1, 2, -1});
  CHECK(packing.sequence(0) == 1);
  CHECK(packing.sequence(1) == 3);
  CHECK(packing.first_row(2) == packing.last_row(2));
  CHECK(pack<std::int32_t>({0}).sequences() == 0);
  CHECK(pack<std::int32_t>({0}).rows() == 0);
  CHECK(pack<std::int32_t>({0, 0}).tokens() == 0);
}

TEST_CASE("a [B, S] batch is the packing of equal padded lengths") {
  const std::vector<std::int32_t> lengths{4, 0, 2};
  Packing batch;
  batch.assign_batch(3, 4, lengths);
  const Packing same = pack<std::int32_t>({0, 4, 4, 6}, {0, 4, 8, 12});
  CHECK(batch.tokens() == 12);
  CHECK(targets_of(batch, 12) == targets_of(same, 12));
  batch.assign_batch(2, 3);
  CHECK(targets_of(batch, 6) == std::vector<Index>{1, 2, -1, 4, 5, -1});
  batch.assign_batch(0, 5);
  CHECK(batch.rows() == 0);
}

TEST_CASE("token-aligned data moves to the rows that predict the tokens, and 0 stands elsewhere") {
  const Packing packing = pack<std::int32_t>({0, 2, 4}, {0, 3, 6});
  const std::vector<float> column{10, 11, std::numeric_limits<float>::quiet_NaN(), 13, 14, 15};
  Tape tape;
  const View moved = tape.value(tape.constant(packing.to_predictions(column)));
  const std::vector<double> right{11, 0, 0, 14, 0, 0};
  for (Index r = 0; r < 6; ++r) CHECK(moved.get<double>(r) == right[std::size_t(r)]);
  const std::vector<std::uint8_t> bytes{0, 1, 0, 0, 1, 0};
  const View mask = tape.value(tape.constant(packing.to_predictions(bytes)));
  CHECK(mask.get<double>(0) == 1);
  CHECK(mask.get<double>(3) == 1);
  check_says(refusal([&] { (void)packing.to_predictions(View(column.data(), 5)); }), "6");
}

TEST_CASE("offsets that are no offsets are refused by name and place, and the packing stays as it was") {
  Packing packing = pack<std::int32_t>({0, 3, 5});
  const std::uint64_t version = packing.version();
  const auto refused = [&](const auto& cu, const auto& padded, const std::vector<std::string>& pieces) {
    const UsageError error = refusal([&] { packing.assign(cu, padded); });
    for (const std::string& piece : pieces) check_says(error, piece);
    CHECK(packing.version() == version);
    CHECK(packing.tokens() == 5);
  };
  using V = std::vector<std::int64_t>;
  const V good{0, 3, 5};
  refused(V{1, 3, 5}, good, {"cu_seqlens", "from 0"});
  refused(V{0, 4, 3}, good, {"cu_seqlens", "never decrease", "3 after 4", "row 2"});
  refused(good, V{0, 6, 5}, {"cu_seqlens_padded", "never decrease", "row 2"});
  refused(good, V{0, 2, 5}, {"cu_seqlens_padded", "sequence 0", "row 0"});
  refused(good, V{0, 5}, {"cu_seqlens_padded", "3", "2"});
  refused(V{}, V{}, {"cu_seqlens"});
  refused(V{0, -1}, good, {"cu_seqlens", "-1"});
  refused(std::vector<double>{0, 3, 5}, good, {"cu_seqlens", "int32 or int64", "f64"});
  const V two_columns{0, 1, 3, 4};
  refused(View(two_columns.data(), 2, 2), good, {"cu_seqlens", "[2, 2]"});
  const std::vector<std::int64_t> huge{0, std::numeric_limits<std::int64_t>::max()};
  packing.assign(huge);  // legal by itself: no memory is asked for
  CHECK(packing.target_row(5) == 6);
}

TEST_CASE("batch lengths that do not fit are refused by row") {
  Packing packing;
  const std::vector<std::int64_t> lengths{2, 5};
  check_says(refusal([&] { packing.assign_batch(2, 4, lengths); }), "5");
  check_says(refusal([&] { packing.assign_batch(3, 4, lengths); }), "lengths [3]");
  check_says(refusal([&] { packing.assign_batch(-1, 4); }), "-1");
  check_says(refusal([&] { packing.assign_batch(std::numeric_limits<Index>::max(), 4); }), "sequences");
  const std::vector<double> fractions{2.5, 1};
  check_says(refusal([&] { packing.assign_batch(2, 4, fractions); }), "int32 or int64");
}

TEST_CASE("zigzag wants padded lengths that are multiples of twice the ranks") {
  const std::vector<std::int32_t> cu{0, 4, 10};
  const std::vector<UsageError> errors = threads::run(2, [&](Communicator& group) {
    Packing packing;
    return refusal([&] { packing.assign(cu, ContextGroup(group), ContextLayout::zigzag); });
  });
  for (const UsageError& error : errors) {
    check_says(error, "multiples of 2 × context ranks, 4");
    check_says(error, "sequence 1 of 6 rows");
    check_says(error, "contiguous");
  }
}

TEST_CASE("every node that refers to a packing finds out that it was assigned anew") {
  const std::vector<std::int32_t> cu{0, 2, 4};
  const std::vector<std::int32_t> ids{0, 1, 1, 0};
  const std::vector<float> logits(8, 0.5F);
  const std::vector<float> mask(4, 1.0F);
  std::vector<float> slice(8, -7.0F);
  Packing packing;
  const auto refused_after = [&](const char* node, auto record) {
    CAPTURE(node);
    packing.assign(cu);
    Tape tape;
    const Var z = tape.input(View(logits.data(), 4, 2), MutableView(slice.data(), 4, 2));
    const Var loss = record(tape, z);
    packing.assign(cu);
    const UsageError error = refusal([&] { tape.backward(loss); });
    check_says(error, node);
    check_says(error, "one Packing a step in flight");
    CHECK(slice == std::vector<float>(8, -7.0F));
  };
  // Each node's packing is its own, so that it is the one that is asked.
  Packing other;
  other.assign(cu);
  const auto mean_by = [&](Tape& tape, Var x, const Packing& by) {
    return masked_mean(x, tape.constant(by.to_predictions(mask)), by);
  };
  refused_after("vocab_stats", [&](Tape& tape, Var z) {
    return mean_by(tape, vocab_stats(z, packing, ids, VocabShard::whole(2)).logprob, other);
  });
  refused_after("masked_reduce", [&](Tape& tape, Var z) {
    return mean_by(tape, vocab_stats(z, other, ids, VocabShard::whole(2)).logprob, packing);
  });
  refused_after("sequence_mean", [&](Tape& tape, Var z) {
    const Var logp = vocab_stats(z, other, ids, VocabShard::whole(2)).logprob;
    const Var mean = sequence_mean(logp, tape.constant(other.to_predictions(mask)), packing);
    return mean_by(tape, spread(mean, other), other);
  });
  refused_after("spread", [&](Tape& tape, Var z) {
    const Var logp = vocab_stats(z, other, ids, VocabShard::whole(2)).logprob;
    const Var sum = sequence_sum(logp, tape.constant(other.to_predictions(mask)), other);
    return mean_by(tape, spread(sum, packing), other);
  });
}

TEST_CASE("rows of the buffer past the pack's end are padding, and a buffer that is too short is refused") {
  const std::vector<std::int32_t> cu{0, 2};
  const std::vector<std::int32_t> ids{0, 1};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits{1, 2, 3, 4, nan, nan, 1e30F, nan};
  std::vector<float> slice(8, nan);
  Packing packing;
  packing.assign(cu);
  Tape tape;
  const Var z = tape.input(View(logits.data(), 4, 2), MutableView(slice.data(), 4, 2));
  const Var logp = vocab_stats(z, packing, ids, VocabShard::whole(2), {.entropy = true}).logprob;
  CHECK(logp.rows() == 2);
  const std::vector<float> seed{1, 1};
  tape.backward(logp, seed);
  CHECK(slice[0] == doctest::Approx(-0.2689414));
  for (std::size_t at = 2; at < 8; ++at) CHECK(std::bit_cast<std::uint32_t>(slice[at]) == 0);
  const Var shorter = tape.constant(View(logits.data(), 1, 2));
  check_says(refusal([&] { (void)vocab_stats(shorter, packing, ids, VocabShard::whole(2)); }), "cu_seqlens_padded");
}

}  // namespace losstape::testing
