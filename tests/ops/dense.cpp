// SPDX-License-Identifier: Apache-2.0
// The evaluation of dense cases.
#include "tests/ops/dense.h"

#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <type_traits>

#include "distributed/threads.h"

namespace losstape::testing {
namespace {

// Σ adjoint · x over three values, whose backward brings each its adjoint.
struct WeighAll {
  static constexpr auto name = "weigh_all";
  const Matrix* adjoints;  // [3]
  std::size_t count;
  void forward(auto& c) const {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto x = c.in(i);
      for (Index r = 0; r < x.rows(); ++r) {
        for (Index k = 0; k < x.cols(); ++k) {
          if (adjoints[i](r, k) != 0) sum += adjoints[i](r, k) * static_cast<double>(x(r, k));
        }
      }
    }
    c.out(0).write(0, sum);
  }
  void backward(auto& c) const {
    for (std::size_t i = 0; i < count; ++i) {
      const auto dx = c.grad(i);
      for (Index r = 0; r < dx.rows(); ++r) {
        for (Index k = 0; k < dx.cols(); ++k) dx.write(r, k, adjoints[i](r, k));
      }
    }
  }
};

Matrix column(const std::vector<double>& x, Index rows) {
  Matrix y = Matrix::Zero(rows, 1);
  for (std::size_t r = 0; r < x.size(); ++r) y(Index(r), 0) = x[r];
  return y;
}

Matrix copy(const View& view) {
  Matrix y(view.rows, view.cols);
  for (Index r = 0; r < view.rows; ++r) {
    for (Index c = 0; c < view.cols; ++c) y(r, c) = view.get<double>(r, c);
  }
  return y;
}

}  // namespace

template <class R>
DenseResult evaluate(const Dense& dense) {
  const Index T = dense.logits.rows();
  const Index V = dense.logits.cols();
  const Index vocab = dense.vocab < 0 ? V : dense.vocab;
  const Index K = dense.gathered.empty() ? 0 : Index(dense.gathered.size()) / T;
  const std::array<Matrix, 3> adjoints{column(dense.logprob_adjoint, T), column(dense.entropy_adjoint, T),
                                       dense.gathered_adjoint.size() > 0 ? dense.gathered_adjoint : Matrix::Zero(T, K)};
  DenseResult result;
  result.gradient = Matrix::Constant(T, V, std::numeric_limits<double>::quiet_NaN());
  std::mutex merging;
  bool first = true;
  threads::run(int(dense.cuts.size()) + 1, [&](Communicator& group) {
    const auto rank = std::size_t(group.rank());
    const Index begin = rank == 0 ? 0 : dense.cuts[rank - 1];
    const Index end = rank == dense.cuts.size() ? V : dense.cuts[rank];
    const VocabShard shard = VocabShard::range(group, begin, end, vocab);
    Buffer value(T, shard.width(), std::is_same_v<R, float> && dense.dtype == DType::f64 ? DType::f32 : dense.dtype);
    for (Index r = 0; r < T; ++r) {
      for (Index c = 0; c < shard.width(); ++c) value.set(r, c, dense.logits(r, begin + c));
    }
    Buffer slice(T, shard.width(), dtype_of<R>);
    slice.fill(std::numeric_limits<double>::quiet_NaN());
    BasicTape<R> tape({.non_finite = dense.non_finite, .audit = Audit::unwritten_rows});
    VocabStatsOptions options{
        .temperature = dense.temperature, .entropy = true, .lse = true, .ignore_index = dense.ignore_index};
    if (K > 0) options.gathered = View(dense.gathered.data(), T, K);
    const auto s = vocab_stats(tape.input(value.view(), slice.mutable_view()), dense.targets, shard, options);
    std::vector<BasicVar<R>> inputs{s.logprob, s.entropy};
    if (K > 0) inputs.push_back(s.gathered);
    tape.backward(tape.record(WeighAll{adjoints.data(), inputs.size()}, inputs, Outputs{{1, 1}})[0]);
    DenseResult mine{copy(tape.value(s.logprob)),
                     copy(tape.value(s.entropy)),
                     copy(tape.value(s.lse)),
                     K > 0 ? copy(tape.value(s.gathered)) : Matrix(),
                     {}};
    const std::scoped_lock lock(merging);
    const auto agree = [](const Matrix& a, const Matrix& b) { return difference(a, b).empty(); };
    if (!first) {
      result.ranks_agree = result.ranks_agree && agree(mine.logprob, result.logprob) &&
                           agree(mine.entropy, result.entropy) && agree(mine.lse, result.lse) &&
                           agree(mine.gathered, result.gathered);
    }
    first = false;
    result.logprob = mine.logprob;
    result.entropy = mine.entropy;
    result.lse = mine.lse;
    result.gathered = mine.gathered;
    for (Index r = 0; r < T; ++r) {
      for (Index c = 0; c < shard.width(); ++c) result.gradient(r, begin + c) = slice.get(r, c);
    }
  });
  return result;
}

Matrix row(std::initializer_list<double> x) { return rows({x}); }

Matrix rows(std::initializer_list<std::initializer_list<double>> x) {
  Matrix y(Index(x.size()), x.size() == 0 ? 0 : Index(x.begin()->size()));
  Index r = 0;
  for (const auto& of_row : x) {
    Index c = 0;
    for (const double v : of_row) y(r, c++) = v;
    ++r;
  }
  return y;
}

bool near(const Matrix& found, const Matrix& right, double bound, double floor) {
  if (found.rows() != right.rows() || found.cols() != right.cols()) return false;
  for (Index at = 0; at < found.size(); ++at) {
    const double a = found.data()[at];
    const double b = right.data()[at];
    if (!(std::abs(a - b) <= bound * std::max(std::abs(b), floor))) return false;
  }
  return true;
}

template DenseResult evaluate<float>(const Dense&);
template DenseResult evaluate<double>(const Dense&);

}  // namespace losstape::testing
