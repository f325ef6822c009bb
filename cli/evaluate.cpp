// SPDX-License-Identifier: Apache-2.0
// A step on every rank, what it costs, and the ranks' parts put together.
#include "cli/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

#include "distributed/counting.h"
#include "distributed/threads.h"
#include "ops/vocab_stats.h"

namespace losstape::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

constexpr double kTimedSeconds = 1;  // about as long as the repeated steps may take together
constexpr int kMostSteps = 15;

// What one rank brings back.
struct RankResult {
  Evaluation evaluation;             // memory is the rank's own; everything else is the same on all
  std::vector<StepSeconds> seconds;  // of its steps, as many on every rank
};

template <class R>
void read_result(const BasicLossResult<R>& result, Evaluation& into) {
  into.real = dtype_of<R>;
  into.loss = static_cast<double>(result.loss.item());
  into.metrics.clear();
  for (const Metric<R>& metric : result.metrics()) {
    into.metrics.emplace_back(metric.name, static_cast<double>(metric.value.item()));
  }
}

void read_memory(const TapeMemory& memory, HeldBytes& into) {
  into.saved = memory.saved;
  into.workspace = memory.workspace;
  into.columns = memory.columns + memory.nodes;
}

// One rank's part of a packed batch. A step may be repeated.
template <class R>
class PackedRank {
 public:
  PackedRank(const RecordedBatch& batch, const LossChoice& choice, const EvaluateOptions& options,
             Communicator& communicator)
      : batch_(batch),
        choice_(choice),
        options_(options),
        communicator_(communicator),
        counted_(communicator),
        shard_(VocabShard::even(counted_, batch.logits.cols)),
        logits_(batch.logits, shard_.begin, shard_.end, options.run.dtype),
        slice_(batch.logits.rows, shard_.width()),
        tape_({.pool = options.pool, .audit = options.audit}) {}

  [[nodiscard]] RankResult run() {
    batch_.lay_out(packing_);
    RankResult found;
    found.seconds.push_back(step(found.evaluation));
    if (options_.timed) {
      // The first step takes what later ones reuse: it is the warm-up.
      const StepSeconds first = found.seconds.front();
      const double longest = communicator_.all_reduce(first.forward + first.backward, Reduce::max);
      const int steps = std::clamp(static_cast<int>(kTimedSeconds / std::max(longest, 1e-9)), 1, kMostSteps);
      found.seconds.clear();
      for (int i = 0; i < steps; ++i) found.seconds.push_back(step(found.evaluation));
    }
    HeldBytes& memory = found.evaluation.memory;
    memory.logits = static_cast<std::size_t>(logits_.view().size()) * size_of(logits_.view().dtype);
    memory.slices = slice_.bytes();
    read_memory(tape_.memory(), memory);
    found.evaluation.gradient_norm = std::sqrt(communicator_.all_reduce(slice_.sum_of_squares(), Reduce::sum));
    return found;
  }

  [[nodiscard]] const VocabShard& shard() const { return shard_; }
  [[nodiscard]] Slice<R>& slice() { return slice_; }

 private:
  StepSeconds step(Evaluation& evaluation) {
    tape_.clear();
    communicator_.barrier();
    counted_.reset();
    const auto begin = Clock::now();
    const BasicVar<R> z = tape_.input(logits_.view(), slice_.view());
    const auto stats =
        vocab_stats(z, packing_, batch_.input_ids, shard_, VocabStatsOptions{.chunk_rows = options_.run.chunk_rows});
    const auto result = record_loss(choice_, stats.logprob, packing_, batch_.columns, batch_.counts);
    StepSeconds took;
    took.forward = seconds_since(begin);
    const CollectiveCounts forward = counted_.step();
    const auto middle = Clock::now();
    tape_.backward(result.loss);
    took.backward = seconds_since(middle);
    evaluation.collectives = {forward.calls, counted_.step().calls - forward.calls, counted_.step().bytes};
    read_result(result, evaluation);
    return took;
  }

  const RecordedBatch& batch_;
  const LossChoice& choice_;
  const EvaluateOptions& options_;
  Communicator& communicator_;
  CountingCommunicator counted_;
  VocabShard shard_;
  LogitsShard logits_;
  Slice<R> slice_;
  Packing packing_;
  BasicTape<R> tape_;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The slowest rank of each step, and the step in the middle.
StepSeconds slowest(const std::vector<RankResult>& ranks) {
  std::vector<double> forward(ranks.front().seconds.size());
  std::vector<double> backward(forward.size());
  for (const RankResult& rank : ranks) {
    for (std::size_t i = 0; i < forward.size(); ++i) {
      forward[i] = std::max(forward[i], rank.seconds[i].forward);
      backward[i] = std::max(backward[i], rank.seconds[i].backward);
    }
  }
  return {median(forward), median(backward)};
}

std::size_t total(const HeldBytes& bytes) {
  return bytes.logits + bytes.slices + bytes.saved + bytes.workspace + bytes.columns;
}

template <class R>
Evaluation run_packed(const RecordedBatch& batch, const LossChoice& choice, const EvaluateOptions& options) {
  Matrix gradient;
  if (options.keep_gradient) gradient = Matrix(dtype_of<R>, batch.logits.rows, batch.logits.cols);
  Witness unheard(options.run.tensor_parallel);
  Witness& witness = options.witness != nullptr ? *options.witness : unheard;
  std::vector<RankResult> ranks = threads::run(options.run.tensor_parallel, [&](Communicator& communicator) {
    PackedRank<R> rank(batch, choice, options, communicator);
    RankResult found;
    witness.watch(communicator.rank(), rank.slice(), [&] { found = rank.run(); });
    if (options.keep_gradient) gradient.set_columns(rank.shard().begin, rank.slice().view());
    return found;
  });
  Evaluation evaluation = ranks.front().evaluation;
  for (const RankResult& rank : ranks) {
    if (total(rank.evaluation.memory) > total(evaluation.memory)) evaluation.memory = rank.evaluation.memory;
  }
  evaluation.seconds = slowest(ranks);
  evaluation.gradient = std::move(gradient);
  return evaluation;
}

template <class R>
Evaluation run_padded(const RecordedBatch& batch, const LossChoice& choice, const EvaluateOptions& options) {
  const Index S = batch.padded_length;
  Packing packing;
  packing.assign_batch(batch.sequences, S);
  // Column t of the log-probs is of token t + 1, which row t of the sequence predicts. Its last row predicts none.
  std::vector<R> logprobs(static_cast<std::size_t>(batch.sequences * S));
  for (Index b = 0; b < batch.sequences; ++b) {
    for (Index t = 0; t + 1 < S; ++t) logprobs[static_cast<std::size_t>(b * S + t)] = batch.logprobs.get<R>(b, t);
  }
  Slice<R> slice(batch.sequences * S, 1);
  Evaluation evaluation;
  Witness unheard(1);
  Witness& witness = options.witness != nullptr ? *options.witness : unheard;
  witness.watch(0, slice, [&] {
    BasicTape<R> tape({.pool = options.pool, .audit = options.audit});
    const BasicVar<R> column = tape.input(View(logprobs), slice.view());
    const auto result = record_loss(choice, column, packing, batch.columns, batch.counts);
    tape.backward(result.loss);
    read_result(result, evaluation);
    read_memory(tape.memory(), evaluation.memory);
  });
  evaluation.memory.slices = slice.bytes();
  evaluation.gradient_norm = std::sqrt(slice.sum_of_squares());
  if (options.keep_gradient) {
    evaluation.gradient = Matrix(dtype_of<R>, batch.sequences * S, 1);
    evaluation.gradient.set_columns(0, slice.view());
  }
  return evaluation;
}

}  // namespace

DType real_type(DType logits, std::optional<DType> rounded_to) {
  return rounded_to.value_or(logits) == DType::f64 ? DType::f64 : DType::f32;
}

Evaluation evaluate_packed(const RecordedBatch& batch, const LossChoice& choice, const EvaluateOptions& options) {
  return real_type(batch.logits.dtype, options.run.dtype) == DType::f64 ? run_packed<double>(batch, choice, options)
                                                                        : run_packed<float>(batch, choice, options);
}

Evaluation evaluate_padded(const RecordedBatch& batch, const LossChoice& choice, const EvaluateOptions& options) {
  return real_type(DType::f64, options.run.dtype) == DType::f64 ? run_padded<double>(batch, choice, options)
                                                                : run_padded<float>(batch, choice, options);
}

}  // namespace losstape::cli
