// SPDX-License-Identifier: Apache-2.0
// Running samples.
#include "tests/ops/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "tests/support/random.h"

namespace losstape::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b)); }

std::string place(Index r, Index c, double a, double b) {
  return " [" + std::to_string(r) + ", " + std::to_string(c) + "]: " + std::to_string(a) + " and " + std::to_string(b) +
         " (apart by " + std::to_string(a - b) + ")";
}

// Puts a value where another rank may have put its replica.
void put(Matrix& into, Index r, Index c, double value, const char* what, std::string& faults) {
  double& place_of = into(r, c);
  // A NaN stands for "not there yet" in fresh memory: replicas of NaN are equal anyway.
  if (!std::isnan(place_of) && !same_bits(place_of, value)) {
    faults += std::string(what) + " differs over ranks at" + place(r, c, place_of, value) + "\n";
  }
  place_of = value;
}

}  // namespace

Buffer::Buffer(Index rows, Index cols, DType dtype)
    : layout_{rows, cols, cols, 1, dtype, Device::cpu}, bytes_(std::size_t(rows * cols) * size_of(dtype) / 8 + 1) {}

void Buffer::set(Index r, Index c, double value) {
  with_float_type(layout_.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    static_cast<T*>(static_cast<void*>(bytes_.data()))[r * layout_.cols + c] = convert<T>(value);
  });
}

void Buffer::fill(double value) {
  for (Index r = 0; r < layout_.rows; ++r) {
    for (Index c = 0; c < layout_.cols; ++c) set(r, c, value);
  }
}

Matrix rounded(const Matrix& x, DType dtype) {
  Matrix y = x;
  with_float_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    y = x.unaryExpr([](double v) { return convert<double>(convert<T>(v)); });
  });
  return y;
}

template <class R>
Run<R>::Run(const Sample& sample, const Batch& batch, std::span<const Matrix> x, const Matrix& seed, Layout layout,
            TensorGroup tensor, ContextGroup context)
    : sample_(sample), batch_(batch), layout_(std::move(layout)), seed_(seed) {
  batch.assign(packing_, context, layout_.context_layout);
  const int rank = tensor.rank();
  const Index begin = rank == 0 ? 0 : layout_.cuts[std::size_t(rank) - 1];
  const Index end = rank + 1 == tensor.size() ? batch.stored : layout_.cuts[std::size_t(rank)];
  shard_ = VocabShard::range(tensor, begin, end, batch.vocab);
  tape_ = std::make_unique<BasicTape<R>>(
      TapeOptions{.threads = layout_.threads, .non_finite = layout_.non_finite, .audit = layout_.audit});
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    const Domain domain = sample.inputs[i];
    const std::vector<Index> rows = rows_of(domain);
    const Index cols = domain == Domain::logits ? shard_.width() : x[i].cols();
    Buffer& value =
        values_.emplace_back(Index(rows.size()), cols, domain == Domain::logits ? layout_.dtype : DType(dtype_of<R>));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (Index c = 0; c < cols; ++c) {
        // Every rank's rows past the end are those of the batch.
        const Index past = Index(r) - packing_.rows() + batch.tokens();
        value.set(Index(r), c, x[i](rows[r] >= 0 ? rows[r] : past, first_column(domain) + c));
      }
    }
    slices_.emplace_back(Index(rows.size()), cols, DType(dtype_of<R>))
        .fill(layout_.grad == Grad::zeroed || layout_.grad == Grad::accumulate ? 0.0 : kNan);
  }
  inputs_.resize(sample.inputs.size());
  y_rows_ = rows_of(sample.output);
}

template <class R>
std::vector<Index> Run<R>::rows_of(Domain domain) const {
  std::vector<Index> rows;
  if (domain == Domain::scalar) return {0};
  if (domain == Domain::sequence) {
    for (Index b = 0; b < batch_.sequences(); ++b) rows.push_back(b);
    return rows;
  }
  for (Index r = 0; r < packing_.rows(); ++r) rows.push_back(packing_.global_row(r));
  if (domain == Domain::logits) rows.insert(rows.end(), std::size_t(batch_.extra), -1);
  return rows;
}

template <class R>
void Run<R>::record() {
  tape_->clear();
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    inputs_[i] = tape_->input(values_[i].view(), slices_[i].mutable_view(), layout_.grad);
  }
  made_ = sample_.record<R>()(*tape_, inputs_, Env{batch_, packing_, shard_, layout_.chunk_rows});
}

template <class R>
void Run<R>::backward(double scale) {
  const Index cols = made_.y.cols();
  const Index rows = made_.y.rows();
  scaled_seed_.resize(std::size_t(rows * cols));
  for (Index r = 0; r < rows; ++r) {
    const Index row = y_rows_[std::size_t(r)];
    for (Index c = 0; c < cols; ++c) {
      scaled_seed_[std::size_t(r * cols + c)] = row < 0 ? R(0) : static_cast<R>(scale * seed_(row, c));
    }
  }
  tape_->backward(made_.y, View(scaled_seed_.data(), rows, cols));
}

template <class R>
void Run<R>::merge_into(Outcome& outcome) const {
  const View y = tape_->value(made_.y);
  for (Index r = 0; r < y.rows; ++r) {
    const Index row = y_rows_[std::size_t(r)];
    for (Index c = 0; c < y.cols && row >= 0; ++c) put(outcome.y, row, c, y.get<double>(r, c), "y", outcome.faults);
  }
  if (outcome.metrics.empty()) outcome.metrics.assign(made_.count, kNan);
  for (std::size_t k = 0; k < made_.count; ++k) {
    const double value = made_.metrics[k].item();
    double& known = outcome.metrics[k];
    if (!std::isnan(known) && !same_bits(known, value)) outcome.faults += "metric " + std::to_string(k) + " differs\n";
    known = value;
  }
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const Domain domain = sample_.inputs[i];
    const std::vector<Index> rows = rows_of(domain);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (Index c = 0; c < slices_[i].view().cols; ++c) {
        const double value = slices_[i].get(Index(r), c);
        const bool padding = domain == Domain::logits &&
                             (rows[r] < 0 || !batch_.is_real(rows[r]) || first_column(domain) + c >= batch_.vocab);
        if (padding && std::bit_cast<std::uint64_t>(value) != 0) {
          outcome.faults += "padding holds" + place(Index(r), c, value, 0) + "\n";
        }
        if (rows[r] >= 0) put(outcome.gradients[i], rows[r], first_column(domain) + c, value, "a gradient", outcome.faults);
      }
    }
  }
}

template <class R>
Outcome evaluate(const Sample& sample, const Batch& batch, std::span<const Matrix> x, const Matrix& seed,
                 const Layout& layout) {
  Outcome outcome;
  outcome.y = Matrix::Constant(seed.rows(), seed.cols(), kNan);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool logits = sample.inputs[i] == Domain::logits;
    outcome.gradients.push_back(Matrix::Constant(logits ? batch.tokens() : x[i].rows(), x[i].cols(), kNan));
  }
  const int tensor = layout.tensor_ranks();
  if (tensor * layout.context_ranks == 1) {
    Run<R> run(sample, batch, x, seed, layout);
    run.step();
    run.merge_into(outcome);
    return outcome;
  }
  std::mutex merging;
  threads::run(tensor * layout.context_ranks, [&](Communicator& world) {
    const auto tensor_group = world.split(world.rank() / tensor, world.rank());
    const auto context_group = world.split(world.rank() % tensor, world.rank());
    Run<R> run(sample, batch, x, seed, layout, *tensor_group, *context_group);
    run.step();
    const std::scoped_lock lock(merging);
    run.merge_into(outcome);
  });
  return outcome;
}

Index columns_of(const Sample& sample, const Batch& batch) {
  TapeF64 tape;
  const std::vector<Matrix> x = sample.values(batch);
  const Matrix none;
  Run<double> run(sample, batch, x, none, {.dtype = DType::f64});
  run.record();
  return run.y().cols();
}

Matrix upstream_of(const Sample& sample, const Batch& batch) {
  Random random(99);
  Index rows = 1;
  if (sample.output == Domain::token || sample.output == Domain::logits) rows = batch.tokens();
  if (sample.output == Domain::sequence) rows = batch.sequences();
  Matrix seed(rows, columns_of(sample, batch));
  for (Index r = 0; r < seed.rows(); ++r) {
    for (Index c = 0; c < seed.cols(); ++c) seed(r, c) = random.chance(0.15) && seed.size() > 1 ? 0.0 : random.adjoint();
  }
  return seed;
}

std::string difference(const Matrix& a, const Matrix& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return "shapes differ";
  for (Index r = 0; r < a.rows(); ++r) {
    for (Index c = 0; c < a.cols(); ++c) {
      if (!same_bits(a(r, c), b(r, c))) return "differs at" + place(r, c, a(r, c), b(r, c));
    }
  }
  return {};
}

std::string difference(const Outcome& a, const Outcome& b) {
  std::string found = difference(a.y, b.y);
  if (!found.empty()) return "y " + found;
  for (std::size_t k = 0; k < a.metrics.size(); ++k) {
    if (!same_bits(a.metrics[k], b.metrics[k])) return "metric " + std::to_string(k) + " differs";
  }
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    found = difference(a.gradients[i], b.gradients[i]);
    if (!found.empty()) return "gradient " + std::to_string(i) + " " + found;
  }
  return {};
}

std::string far_from(const Matrix& found, const Matrix& right, double bound, const char* what) {
  if (found.rows() != right.rows() || found.cols() != right.cols()) return std::string(what) + ": shapes differ";
  double most = 1e-30;
  for (Index at = 0; at < right.size(); ++at) {
    const double size = std::abs(right.data()[at]);
    if (std::isfinite(size)) most = std::max(most, size);
  }
  for (Index r = 0; r < found.rows(); ++r) {
    for (Index c = 0; c < found.cols(); ++c) {
      const double a = found(r, c);
      const double b = right(r, c);
      if (same_bits(a, b) || std::abs(a - b) <= bound * most) continue;
      return std::string(what) + " is off by " + std::to_string(std::abs(a - b) / most / bound) + " bounds at" +
             place(r, c, a, b);
    }
  }
  return {};
}

template class Run<float>;
template class Run<double>;
template Outcome evaluate<float>(const Sample&, const Batch&, std::span<const Matrix>, const Matrix&, const Layout&);
template Outcome evaluate<double>(const Sample&, const Batch&, std::span<const Matrix>, const Matrix&, const Layout&);

}  // namespace losstape::testing
