// SPDX-License-Identifier: Apache-2.0
// A sample of a node: how it is recorded on either tape, what it must give by definition, and how it is run in any layout.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "distributed/threads.h"
#include "distributed/vocab_shard.h"
#include "engine/tape.h"
#include "ops/packing.h"
#include "tests/ops/batch.h"

namespace losstape::testing {

// What the rows of a value are. Token values are partitioned over context ranks, sequence values and scalars replicated.
enum class Domain : unsigned char { logits, token, sequence, scalar };

// What a sample's recording is given beside its inputs.
struct Env {
  const Batch& batch;
  const Packing& packing;
  VocabShard shard;
  Index chunk_rows = 0;
};

// What it gives: the value that is differentiated, and scalars without an adjoint.
template <class R>
struct Made {
  BasicVar<R> y;
  std::array<BasicVar<R>, 24> metrics{};
  std::size_t count = 0;

  void add(BasicVar<R> metric) { metrics[count++] = metric; }
};

// The right values by definition, in global rows: y, the gradient of Σ seed · y with respect to each input, the metrics.
struct Truth {
  Matrix y;
  std::vector<Matrix> gradients;
  std::vector<double> metrics{};
};

struct Sample {
  template <class R>
  using Record = std::function<Made<R>(BasicTape<R>& tape, std::span<const BasicVar<R>> x, const Env& env)>;

  std::string node;  // the registered name
  std::string name;
  std::vector<Domain> inputs;
  Domain output = Domain::scalar;
  Record<float> record_f32;
  Record<double> record_f64;
  std::function<std::vector<Matrix>(const Batch&)> values;  // the inputs
  std::function<Truth(const Batch&, std::span<const Matrix> x, const Matrix& seed)> truth;
  bool stopped = false;      // whether frozen and plain differences are expected to differ
  bool over_context = true;  // may run on context ranks
  double fp32_bound = 1e-5;  // of the largest entry

  template <class R>
  [[nodiscard]] const Record<R>& record() const {
    if constexpr (std::is_same_v<R, float>) {
      return record_f32;
    } else {
      return record_f64;
    }
  }
  [[nodiscard]] std::string title() const { return node + ": " + name; }
};

// Fills both recordings from one generic lambda (auto& tape, auto x, const Env&) → Made<R> or Var.
template <class F>
Sample& recorded_by(Sample& sample, F f) {
  sample.record_f32 = f;
  sample.record_f64 = f;
  return sample;
}

// How a sample is run.
struct Layout {
  DType dtype = DType::f32;   // of the logits; token and sequence inputs are of the tape's type
  std::vector<Index> cuts{};  // where shards of the stored columns begin, one a tensor rank from the second on
  int context_ranks = 1;
  ContextLayout context_layout = ContextLayout::contiguous;
  Index chunk_rows = 0;
  int threads = 1;
  Grad grad = Grad::overwrite;
  NonFinite non_finite = NonFinite::error;
  Audit audit = Audit::unwritten_rows;

  [[nodiscard]] int tensor_ranks() const { return static_cast<int>(cuts.size()) + 1; }
};

// A matrix of any float dtype, in memory of its own.
class Buffer {
 public:
  Buffer(Index rows, Index cols, DType dtype);

  [[nodiscard]] View view() const { return View(bytes_.data(), layout_); }
  [[nodiscard]] MutableView mutable_view() { return MutableView(bytes_.data(), layout_); }
  void set(Index r, Index c, double value);
  [[nodiscard]] double get(Index r, Index c) const { return view().get<double>(r, c); }
  void fill(double value);
  [[nodiscard]] const std::vector<double>& bytes() const { return bytes_; }

 private:
  losstape::detail::Layout layout_;
  std::vector<double> bytes_;  // doubles, for their alignment
};

// The matrix with every entry rounded to a dtype.
[[nodiscard]] Matrix rounded(const Matrix& x, DType dtype);

// What a run gave, in global rows and columns. `faults` names values that replicas do not share, and slice elements that
// were not written or, in padding, are not +0.
struct Outcome {
  Matrix y;
  std::vector<Matrix> gradients;
  std::vector<double> metrics;
  std::string faults;
};

// One rank's part of a run: its memory, its tape, and a step that can be repeated.
template <class R>
class Run {
 public:
  Run(const Sample& sample, const Batch& batch, std::span<const Matrix> x, const Matrix& seed, Layout layout,
      TensorGroup tensor = {}, ContextGroup context = {});

  void record();
  void backward(double scale = 1);
  void step() {
    record();
    backward();
  }

  [[nodiscard]] Buffer& slice(std::size_t i) { return slices_[i]; }
  [[nodiscard]] Buffer& value(std::size_t i) { return values_[i]; }
  [[nodiscard]] BasicTape<R>& tape() { return *tape_; }
  [[nodiscard]] BasicVar<R> y() const { return made_.y; }
  [[nodiscard]] BasicVar<R> input(std::size_t i) const { return inputs_[i]; }
  // Copies this rank's part into a whole outcome.
  void merge_into(Outcome& outcome) const;

 private:
  // Global rows of a domain's local rows; −1 for rows past the end.
  [[nodiscard]] std::vector<Index> rows_of(Domain domain) const;
  [[nodiscard]] Index first_column(Domain domain) const { return domain == Domain::logits ? shard_.begin : 0; }

  const Sample& sample_;
  const Batch& batch_;
  Layout layout_;
  Packing packing_;
  VocabShard shard_;
  std::vector<Buffer> values_;
  std::vector<Buffer> slices_;
  Matrix seed_;
  std::vector<R> scaled_seed_;
  std::vector<Index> y_rows_;  // global
  std::unique_ptr<BasicTape<R>> tape_;
  std::vector<BasicVar<R>> inputs_;
  Made<R> made_;
};

// Records and differentiates a sample once on all ranks of the layout.
template <class R>
[[nodiscard]] Outcome evaluate(const Sample& sample, const Batch& batch, std::span<const Matrix> x, const Matrix& seed,
                               const Layout& layout);

// A fixed upstream of both signs and many sizes, exact in bf16: [rows of the output's domain, columns of y].
[[nodiscard]] Matrix upstream_of(const Sample& sample, const Batch& batch);

// Columns of a sample's y.
[[nodiscard]] Index columns_of(const Sample& sample, const Batch& batch);

// "" where equal bit for bit, else where not. Rows of `rows` only, where given.
[[nodiscard]] std::string difference(const Matrix& a, const Matrix& b);
[[nodiscard]] std::string difference(const Outcome& a, const Outcome& b);

// "" where every entry of `found` lies within bound · the largest entry of `right` (or 1e-30 of nothing).
[[nodiscard]] std::string far_from(const Matrix& found, const Matrix& right, double bound, const char* what);

extern template class Run<float>;
extern template class Run<double>;

}  // namespace losstape::testing
