// SPDX-License-Identifier: Apache-2.0
// Checks a gradient: the fp64 tape against central differences, then the fp32 tape against the fp64 one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/tape.h"
#include "engine/view.h"

namespace losstape {

enum class Fp32Check : unsigned char { compare, skip };

struct GradcheckOptions {
  double rel = 1e-7;   // largest error, relative to the largest entry of that input's gradient, or |f| where that is larger
  double step = 1e-5;  // of the central differences
  // Without these every entry is checked. With them: random directions, in which all entries move by a step at once, either
  // way, and the error is relative to the L2 norm of the gradient (or |f|); and random entries.
  Index directions = 0;
  Index entries = 0;
  // Entries that the random ones are drawn from, counted row by row through every input; empty: all. For inputs of which
  // most entries have next to no gradient.
  std::vector<Index> among{};
  std::uint64_t seed = 1;    // of the directions, the entries and the upstream of f
  double most_kinks = 0.25;  // share of the probes that may straddle a kink and be skipped
  Fp32Check fp32 = Fp32Check::compare;
  // Where several ranks evaluate one f together, each holding a part of x0: every rank passes its own number, the entries
  // that each rank checks (its x0 sizes, or the same `entries` on all), and a function that adds a number up over ranks.
  int rank = 0;
  std::vector<Index> coordinates{};
  std::function<double(double)> sum{};
  // Called with a share done in [0, 1], for long checks.
  std::function<void(double)> progress{};
};

struct GradcheckReport {
  double worst_relative_error = 0;  // of the analytic gradient against frozen differences
  Index checked = 0;                // entries and directions compared
  Index skipped_kinks = 0;
  // The largest distance between differences with stop_gradient and selections frozen and plain ones, relative like the
  // error: 0 for a loss that stops nothing. Every loss's test states which it expects.
  double stopped = 0;
  double fp32_gap = 0;  // the fp32 tape's gradient against the fp64 tape's, relative to the largest entry
  double fp32_bound = 0;
  // Where the worst error is; a direction has row −1.
  std::size_t input = 0;
  Index row = 0;
  Index col = 0;
  double analytic = 0;
  double numeric = 0;
  std::string failure{};  // empty when the check passed

  [[nodiscard]] explicit operator bool() const { return failure.empty(); }
  [[nodiscard]] std::string summary() const;
};

namespace detail {

// One evaluation of f.
struct Evaluation {
  double value = 0;  // Σ upstream · f
  bool kink = false;
};

// What the checker needs of f, with its types erased.
class GradcheckProblem {
 public:
  explicit GradcheckProblem(std::span<const View> x0);
  GradcheckProblem(const GradcheckProblem&) = delete;
  GradcheckProblem& operator=(const GradcheckProblem&) = delete;
  virtual ~GradcheckProblem() = default;

  enum class Differences : unsigned char { frozen, plain };

  // Records f at x0 on an fp64 tape that stays, and fills gradient(i). Returns f's value.
  virtual double differentiate(std::uint64_t seed) = 0;
  // f at point(i), around the tape of differentiate() or by itself.
  virtual Evaluation evaluate(Differences differences) = 0;
  // Whether the gradient is added to slices that hold something (Grad::accumulate), and not stored.
  virtual bool adds_to_slices() = 0;
  // The fp32 tape's gradient at x0 rounded to fp32, and the fp64 tape's at the same numbers.
  virtual void differentiate_fp32(std::vector<std::vector<double>>& fp32, std::vector<std::vector<double>>& fp64) = 0;

  [[nodiscard]] std::size_t inputs() const { return points_.size(); }
  [[nodiscard]] std::vector<double>& point(std::size_t i) { return points_[i]; }
  [[nodiscard]] std::vector<double>& gradient(std::size_t i) { return gradients_[i]; }
  [[nodiscard]] Index cols(std::size_t i) const { return shapes_[i].cols; }
  // By what the value of a scalar f is multiplied; 1 for others, whose elements have a weight each.
  [[nodiscard]] double scalar_weight() const { return weights_.size() == 1 ? weights_[0] : 1; }

 protected:
  [[nodiscard]] View point_view(std::size_t i) const;
  [[nodiscard]] MutableView gradient_view(std::size_t i);
  // The fixed upstream of f: numbers of both signs and many sizes. Not 1 for a scalar either: a backward that forgets its
  // adjoint would pass.
  static std::vector<double> upstream(const Shape& shape, std::uint64_t seed);
  static double weigh(const View& value, std::span<const double> weights);
  // slice = 1 + gradient, to rounding.
  static bool holds_one_more(std::span<const double> slice, std::span<const double> gradient);

  std::vector<Shape> shapes_;
  std::vector<std::vector<double>> points_;
  std::vector<std::vector<double>> gradients_;
  std::vector<double> weights_;
};

[[nodiscard]] GradcheckReport run_gradcheck(GradcheckProblem& problem, const GradcheckOptions& options);

template <class F, std::size_t N>
class Problem final : public GradcheckProblem {
 public:
  Problem(const F& f, const std::array<View, N>& x0) : GradcheckProblem(x0), f_(f) {}

  double differentiate(std::uint64_t seed) override {
    base_ = std::make_unique<TapeF64>(TapeOptions{.audit = Audit::unwritten_rows});
    std::array<VarF64, N> x;
    for (std::size_t i = 0; i < N; ++i) x[i] = base_->input(base_view(i), gradient_view(i));
    const VarF64 y = call(*base_, x);
    weights_ = upstream(y.shape(), seed);
    base_->backward(y, View(weights_.data(), y.rows(), y.cols()));
    return weigh(base_->value(y), weights_);
  }

  Evaluation evaluate(Differences differences) override {
    TapeF64& tape = differences == Differences::frozen ? probe_of(frozen_, base_.get()) : probe_of(plain_, nullptr);
    tape.clear();
    std::array<VarF64, N> x;
    for (std::size_t i = 0; i < N; ++i) x[i] = tape.constant(point_view(i));
    const VarF64 y = call(tape, x);
    return {weigh(tape.value(y), weights_), tape.met_kink()};
  }

  bool adds_to_slices() override {
    TapeF64 tape;
    std::array<std::vector<double>, N> slices;
    std::array<VarF64, N> x;
    for (std::size_t i = 0; i < N; ++i) {
      slices[i].assign(points_[i].size(), 1.0);
      x[i] = tape.input(point_view(i), MutableView(slices[i].data(), shapes_[i].rows, shapes_[i].cols), Grad::accumulate);
    }
    const VarF64 y = call(tape, x);
    tape.backward(y, View(weights_.data(), y.rows(), y.cols()));
    bool added = true;
    for (std::size_t i = 0; i < N; ++i) added = added && holds_one_more(slices[i], gradients_[i]);
    return added;
  }

  void differentiate_fp32(std::vector<std::vector<double>>& fp32, std::vector<std::vector<double>>& fp64) override {
    std::array<std::vector<float>, N> rounded;
    std::array<std::vector<double>, N> widened;
    for (std::size_t i = 0; i < N; ++i) {
      for (const double x : points_[i]) rounded[i].push_back(static_cast<float>(x));
      widened[i].assign(rounded[i].begin(), rounded[i].end());
    }
    fp32 = gradients_of<float>(rounded);
    fp64 = gradients_of<double>(widened);
  }

 private:
  template <class R>
  auto call(BasicTape<R>& tape, const std::array<BasicVar<R>, N>& x) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) { return f_(tape, x[I]...); }
    (std::make_index_sequence<N>{});
  }
  // The base's own copy of x0: probes move point(i).
  View base_view(std::size_t i) {
    start_[i] = points_[i];
    return View(start_[i].data(), shapes_[i].rows, shapes_[i].cols);
  }
  static TapeF64& probe_of(std::unique_ptr<TapeF64>& tape, const TapeF64* around) {
    if (!tape) tape = std::make_unique<TapeF64>(TapeF64::Probe{around});
    return *tape;
  }
  template <class R>
  std::vector<std::vector<double>> gradients_of(const std::array<std::vector<R>, N>& at) {
    BasicTape<R> tape;
    std::array<std::vector<R>, N> slices;
    std::array<BasicVar<R>, N> x;
    for (std::size_t i = 0; i < N; ++i) {
      slices[i].assign(at[i].size(), R(0));
      x[i] = tape.input(View(at[i].data(), shapes_[i].rows, shapes_[i].cols),
                        MutableView(slices[i].data(), shapes_[i].rows, shapes_[i].cols));
    }
    const BasicVar<R> y = call(tape, x);
    tape.backward(y, View(weights_.data(), y.rows(), y.cols()));
    std::vector<std::vector<double>> found;
    found.reserve(N);
    for (const std::vector<R>& slice : slices) found.emplace_back(slice.begin(), slice.end());
    return found;
  }

  const F& f_;
  std::array<std::vector<double>, N> start_;
  std::unique_ptr<TapeF64> base_;
  std::unique_ptr<TapeF64> frozen_;
  std::unique_ptr<TapeF64> plain_;
};

}  // namespace detail

// Checks the gradient of f(tape, x…) at x0. f is a generic lambda, [&](auto& tape, auto x) { return my_loss(x); }, which
// records the same graph on TapeF64, on Tape and on the tapes of probes; it returns a Var of any shape (one that is no
// scalar is weighed by a fixed random upstream). Entries of f's value that stop_gradient, a selection or a detached weight
// freezes stay as at x0 in the differences. Probes that straddle a kink are skipped and counted.
//
// Cost: four evaluations of f an entry or direction. Errors: whatever f throws; the report says what failed.
template <class F, std::size_t N>
[[nodiscard]] GradcheckReport gradcheck(const F& f, const std::array<View, N>& x0, const GradcheckOptions& options = {}) {
  static_assert(
      []<std::size_t... I>(std::index_sequence<I...>) {
        return std::is_invocable_v<const F&, TapeF64&, decltype((void)I, VarF64())...>;
      }(std::make_index_sequence<N>{}),
      "gradcheck needs f(tape, x…) for fp64 too: write it with auto, as [&](auto& tape, auto x) {…}");
  detail::Problem<F, N> problem(f, x0);
  return detail::run_gradcheck(problem, options);
}

template <class F>
[[nodiscard]] GradcheckReport gradcheck(const F& f, const View& x0, const GradcheckOptions& options = {}) {
  return gradcheck(f, std::array<View, 1>{x0}, options);
}

}  // namespace losstape
