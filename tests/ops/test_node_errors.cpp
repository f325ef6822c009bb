// SPDX-License-Identifier: Apache-2.0
// Every call that the table says is wrong: a typed error that names things, nothing written, the tape usable, ranks agreed.
#include <doctest/doctest.h>

#include <cstring>

#include "engine/error.h"
#include "ops/losses/nll.h"
#include "ops/vocab_stats.h"
#include "tests/ops/node_table.h"

namespace losstape::testing {
namespace {

// A rank's logits, their slice, and the words of what it refused.
struct Attempt {
  std::string words;
  std::string faults;
};

// The sound step that the tape must still be able to make; returns its loss and leaves the gradient in `slice`.
double sound_step(Tape& tape, Var z, const Env& env) {
  const auto stats = vocab_stats(z, env.packing, env.batch.ids, env.shard);
  const auto result = nll_loss(stats, env.packing, env.batch.columns());
  tape.backward(result.loss);
  return result.loss.item();
}

Buffer shard_of(const Batch& batch, const VocabShard& shard) {
  Buffer value(batch.logits.rows(), shard.width(), DType::f32);
  for (Index r = 0; r < batch.logits.rows(); ++r) {
    for (Index c = 0; c < shard.width(); ++c) value.set(r, c, batch.logits(r, shard.begin + c));
  }
  return value;
}

Attempt attempt(const ErrorSample& sample, const Batch& batch, TensorGroup group) {
  Packing packing;
  batch.assign(packing);
  const Env env{batch, packing, VocabShard::even(group, batch.vocab, batch.stored)};
  const Buffer value = shard_of(batch, env.shard);
  Buffer slice(batch.logits.rows(), env.shard.width(), DType::f32);
  slice.fill(-123.25);
  const std::vector<double> untouched = slice.bytes();
  Tape tape({.audit = Audit::unwritten_rows});
  const Var z = tape.input(value.view(), slice.mutable_view());
  const bool errs = !sample.one_rank_only || group.size() == 1 || group.rank() == 1;
  Attempt result;
  try {
    (errs ? sample.call : sample.right)(tape, z, env);
    return {"", "nothing was refused"};
  } catch (const UsageError& error) {
    result.words = error.what();
    if (error.expected().empty() || error.found().empty()) result.faults += "no expected or found; ";
  } catch (const std::exception& error) {
    return {error.what(), "not a UsageError"};
  }
  for (const std::string& piece : sample.pieces) {
    if (result.words.find(piece) == std::string::npos) result.faults += "nothing about \"" + piece + "\"; ";
  }
  if (!sample.records_first && !tape.records().empty()) result.faults += "the tape has a record of it; ";
  if (std::memcmp(slice.bytes().data(), untouched.data(), untouched.size() * sizeof(double)) != 0) {
    result.faults += "the slice was written; ";
  }
  // The same tape goes on, and a fresh one gives the same bits.
  const double loss = sound_step(tape, z, env);
  Buffer fresh_slice(batch.logits.rows(), env.shard.width(), DType::f32);
  Tape fresh;
  const double fresh_loss = sound_step(fresh, fresh.input(value.view(), fresh_slice.mutable_view()), env);
  if (std::memcmp(&loss, &fresh_loss, sizeof loss) != 0) result.faults += "a later loss differs; ";
  if (slice.bytes() != fresh_slice.bytes()) result.faults += "a later gradient differs; ";
  return result;
}

}  // namespace

TEST_CASE("what is wrong is refused in words that name it, and leaves tape and slices as they were") {
  const Batch& batch = small_batches()[0];
  for (const ErrorSample& sample : error_samples()) {
    CAPTURE(sample.node);
    CAPTURE(sample.name);
    const Attempt found = attempt(sample, batch, {});
    CHECK_MESSAGE(found.faults == "", found.words);
  }
}

TEST_CASE("what is wrong is refused on every tensor-parallel rank in the same words, and the group goes on") {
  const Batch& batch = small_batches()[0];
  for (const ErrorSample& sample : error_samples()) {
    for (const int ranks : {2, 3}) {
      CAPTURE(sample.node);
      CAPTURE(sample.name);
      CAPTURE(ranks);
      const std::vector<Attempt> found =
          threads::run(ranks, [&](Communicator& group) { return attempt(sample, batch, group); });
      for (const Attempt& rank : found) {
        CHECK_MESSAGE(rank.faults == "", rank.words);
        CHECK(rank.words == found[0].words);
      }
    }
  }
}

}  // namespace losstape::testing
