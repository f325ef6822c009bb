// SPDX-License-Identifier: Apache-2.0
// The node with all its outputs, and a small node that weighs them together.
#include "cli/vocab_ops.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "cli/buffers.h"
#include "cli/evaluate.h"
#include "distributed/threads.h"
#include "ops/vocab_stats.h"

namespace losstape::cli {
namespace {

// What the case gives the node, and the upstream of each output: empty where it gives none.
struct Inputs {
  explicit Inputs(const CaseFile& file) {
    logits = file.floats("logits", {-1, -1});
    const Index rows = logits.rows;
    targets = file.ids("targets", {rows});
    temperature = file.number("temperature").value_or(1);
    if (file.has("topk_indices")) gathered = file.ids("topk_indices", {rows, -1});
    upstream[0] = file.any_if_there("grad_out_logprob", {rows});
    upstream[1] = file.any_if_there("grad_out_entropy", {rows});
    if (file.has("topk_indices")) upstream[2] = file.any_if_there("grad_out_topk", {rows, gathered.cols});
  }

  View logits;
  View targets;
  View gathered{};
  double temperature = 1;
  std::array<View, 3> upstream{};
};

constexpr std::array<const char*, 3> kOutputs{"logprob", "entropy", "topk"};

// Σ w x over several columns: their upstreams in one backward. An element of weight 0 counts for nothing, whatever it is.
struct WeightedSum {
  static constexpr auto name = "weighted_sum";

  std::array<View, 3> weights{};

  void forward(auto& c) const {
    double sum = 0;
    for_elements(c, [&](std::size_t i, Index r, Index k, double w) {
      if (w != 0) sum += w * static_cast<double>(c.in(i)(r, k));
    });
    c.out(0).write(0, sum);
  }
  void backward(auto& c) const {
    const double g = c.dout(0)(0);
    for_elements(c, [&](std::size_t i, Index r, Index k, double w) { c.grad(i).write(r, k, g * w); });
  }

 private:
  void for_elements(auto& c, const auto& f) const {
    for (std::size_t i = 0; i < c.inputs(); ++i) {
      for (Index r = 0; r < weights[i].rows; ++r) {
        for (Index k = 0; k < weights[i].cols; ++k) f(i, r, k, weights[i].get<double>(r, k));
      }
    }
  }
};

// The outputs on one rank.
struct RankOutputs {
  Matrix logprob;
  Matrix entropy;
  Matrix lse;
  Matrix gathered;
};

// Gradients of all ranks, joined: one for each output's upstream, and one for all together.
using Gradients = std::array<Matrix, 4>;

template <class R>
class VocabOpsRank {
 public:
  VocabOpsRank(const Inputs& inputs, const RunOptions& run, Pool& pool, Communicator& communicator)
      : inputs_(inputs),
        run_(run),
        shard_(VocabShard::even(communicator, inputs.logits.cols)),
        logits_(inputs.logits, shard_.begin, shard_.end, run.dtype),
        slice_(inputs.logits.rows, shard_.width()),
        tape_({.pool = &pool, .audit = Audit::unwritten_rows}) {}

  [[nodiscard]] const Slice<R>& slice() const { return slice_; }

  RankOutputs run(Gradients& gradients) {
    const BasicVar<R> z = tape_.input(logits_.view(), slice_.view());
    const auto stats = vocab_stats(z, inputs_.targets, shard_,
                                   VocabStatsOptions{.temperature = inputs_.temperature,
                                                     .entropy = true,
                                                     .lse = true,
                                                     .gathered = inputs_.gathered,
                                                     .chunk_rows = run_.chunk_rows});
    RankOutputs outputs{copy(stats.logprob), copy(stats.entropy), copy(stats.lse), {}};
    std::vector<BasicVar<R>> vars{stats.logprob, stats.entropy};
    std::vector<double> finite;
    std::array<View, 3> upstream = inputs_.upstream;
    if (inputs_.gathered.data() != nullptr) {
      vars.push_back(stats.gathered);
      outputs.gathered = copy(stats.gathered);
      upstream[2] = where_finite(upstream[2], outputs.gathered.view(), finite);
    }
    WeightedSum together;
    std::vector<BasicVar<R>> weighed;
    for (std::size_t i = 0; i < vars.size(); ++i) {
      if (upstream[i].data() == nullptr) continue;
      tape_.backward(vars[i], upstream[i]);
      gradients[i].set_columns(shard_.begin, slice_.view());
      together.weights[weighed.size()] = upstream[i];
      weighed.push_back(vars[i]);
    }
    if (weighed.empty()) return outputs;
    const BasicVar<R> sum = tape_.record(together, weighed, Outputs{{1, 1}})[0];
    tape_.backward(sum);
    gradients[3].set_columns(shard_.begin, slice_.view());
    return outputs;
  }

 private:
  Matrix copy(const BasicVar<R>& var) const {
    Matrix values(dtype_of<R>, var.rows(), var.cols());
    values.set_columns(0, tape_.value(var));
    return values;
  }
  // A log-prob of −∞ has upstream 0.
  static View where_finite(const View& upstream, const View& values, std::vector<double>& storage) {
    if (upstream.data() == nullptr) return upstream;
    for (Index r = 0; r < upstream.rows; ++r) {
      for (Index k = 0; k < upstream.cols; ++k) {
        storage.push_back(std::isinf(values.get<double>(r, k)) ? 0 : upstream.get<double>(r, k));
      }
    }
    return {storage.data(), upstream.rows, upstream.cols};
  }

  const Inputs& inputs_;
  const RunOptions& run_;
  VocabShard shard_;
  LogitsShard logits_;
  Slice<R> slice_;
  BasicTape<R> tape_;
};

// The gradient of all upstreams together is the sum of the gradients that the case has, and so is what is allowed.
void compare_sum(const View& got, const std::vector<View>& wants, const Tolerance& each, Comparison& comparison) {
  for (Index r = 0; r < got.rows; ++r) {
    for (Index c = 0; c < got.cols; ++c) {
      double want = 0;
      Tolerance tolerance;
      for (const View& part : wants) {
        const auto value = part.get<double>(r, c);
        want += value;
        tolerance.absolute += each.absolute + each.relative * std::abs(value);
      }
      const std::array<Index, 2> place{r, c};
      comparison.element("grad_logits of all upstreams", place, got.get<double>(r, c), want, tolerance);
    }
  }
}

template <class R>
void check(const CaseFile& file, const RunOptions& run, Pool& pool, Witness& witness, Comparison& comparison) {
  const Inputs inputs(file);
  const Index T = inputs.logits.rows;
  const Index V = inputs.logits.cols;
  Gradients gradients;
  for (Matrix& gradient : gradients) gradient = Matrix(dtype_of<R>, T, V);
  const std::vector<RankOutputs> ranks = threads::run(run.tensor_parallel, [&](Communicator& communicator) {
    VocabOpsRank<R> rank(inputs, run, pool, communicator);
    RankOutputs outputs;
    witness.watch(communicator.rank(), rank.slice(), [&] { outputs = rank.run(gradients); });
    return outputs;
  });
  if (file.has_entry("expect_error")) return;

  const Tolerance tolerance = Tolerances::of(dtype_of<R>).vocabulary;
  const auto compare = [&](const char* name, const Matrix& got, const std::vector<Index>& shape) {
    if (file.has(name)) comparison.tensor(name, got.view(), file.floats(name, shape), tolerance);
  };
  for (const RankOutputs& outputs : ranks) {
    compare("logprob", outputs.logprob, {T});
    compare("entropy", outputs.entropy, {T});
    compare("lse", outputs.lse, {T});
    if (inputs.gathered.data() != nullptr) compare("topk_logprobs", outputs.gathered, {T, inputs.gathered.cols});
  }
  std::vector<View> wants;
  std::size_t given = 0;
  for (std::size_t i = 0; i < kOutputs.size(); ++i) {
    if (inputs.upstream[i].data() == nullptr) continue;
    ++given;
    const std::string name = std::string("grad_logits_") + kOutputs[i];
    if (!file.has(name)) continue;
    wants.push_back(file.floats(name, {T, V}));
    comparison.tensor(name, gradients[i].view(), wants.back(), tolerance);
  }
  if (wants.size() == given && given > 1) compare_sum(gradients[3].view(), wants, tolerance, comparison);
}

}  // namespace

void check_vocab_ops(const CaseFile& file, const RunOptions& run, Pool& pool, Witness& witness, Comparison& comparison) {
  const DType logits = file.floats("logits", {-1, -1}).dtype;
  if (real_type(logits, run.dtype) == DType::f64) return check<double>(file, run, pool, witness, comparison);
  check<float>(file, run, pool, witness, comparison);
}

}  // namespace losstape::cli
