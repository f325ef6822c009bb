// SPDX-License-Identifier: Apache-2.0
// The differences, and the report.
#include "engine/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "engine/error.h"

namespace losstape {
namespace {

std::string text(double value) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.3g", value);
  return buffer.data();
}

double largest(std::span<const double> values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

// Whether `found` is worse than the worst so far. NaN is the worst of all, and stays.
bool worse(double found, double worst) { return !std::isnan(worst) && !(found <= worst); }

// The run of one check: moves points, compares, keeps the report.
class Checker {
 public:
  Checker(detail::GradcheckProblem& problem, const GradcheckOptions& options) : problem_(problem), options_(options) {}

  GradcheckReport run() {
    f_ = problem_.differentiate(options_.seed);
    for (std::size_t i = 0; i < problem_.inputs(); ++i) {
      for (const double g : problem_.gradient(i)) finite_ = finite_ && std::isfinite(g);
    }
    const bool sampled = options_.directions > 0 || options_.entries > 0;
    plan(sampled ? options_.entries : size());
    for (Index d = 0; d < options_.directions; ++d) check_direction(d);
    for (std::size_t rank = 0; rank < turns_.size(); ++rank) {
      for (Index k = 0; k < turns_[rank]; ++k) check_entry(static_cast<int>(rank), sampled ? -1 : k);
    }
    adds_ = problem_.adds_to_slices();
    if (options_.fp32 == Fp32Check::compare) compare_fp32();
    judge();
    return report_;
  }

 private:
  struct Difference {
    double slope = 0;
    bool kink = false;
  };

  [[nodiscard]] Index size() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < problem_.inputs(); ++i) count += problem_.point(i).size();
    return static_cast<Index>(count);
  }

  // How many entries each rank checks in its turn: while one rank moves an entry, the others evaluate with it.
  void plan(Index own) {
    turns_.assign(1, own);
    if (!options_.coordinates.empty()) turns_ = options_.coordinates;
    const auto rank = static_cast<std::size_t>(options_.rank);
    const bool sampled = options_.directions > 0 || options_.entries > 0;
    if (!options_.coordinates.empty() &&
        (options_.rank < 0 || rank >= turns_.size() || turns_[rank] != (sampled ? options_.entries : size()))) {
      throw UsageError({"gradcheck",
                        sampled ? "coordinates of every rank: its entries, " + std::to_string(options_.entries) + " here"
                                : "coordinates of every rank: the sizes of its x0, " + std::to_string(size()) + " here",
                        "rank " + std::to_string(options_.rank) + " of " + std::to_string(turns_.size()) +
                            (rank < turns_.size() ? " with " + std::to_string(turns_[rank]) : "")});
    }
    probes_ = options_.directions;
    expected_ = size() == 0 ? 0 : options_.directions + turns_[rank];
    for (const Index turn : turns_) probes_ += turn;
  }

  [[nodiscard]] double over_ranks(double value) const { return options_.sum ? options_.sum(value) : value; }

  void step_done() {
    ++done_;
    if (options_.progress && probes_ > 0) options_.progress(static_cast<double>(done_) / static_cast<double>(probes_));
  }

  // Central difference of f along `move`, which places the points at a multiple of the step.
  template <class Move>
  Difference difference(detail::GradcheckProblem::Differences how, const Move& move) {
    const double up = move(options_.step);
    const detail::Evaluation above = problem_.evaluate(how);
    const double down = move(-options_.step);
    const detail::Evaluation below = problem_.evaluate(how);
    move(0);
    // `width` is what the rounded points really are apart; ranks whose points did not move pass the nominal width.
    return {(above.value - below.value) / (up - down), above.kink || below.kink};
  }

  void check_direction(Index d) {
    // Every entry moves by a whole step: a wrong one shows in its full size, however many there are.
    std::mt19937_64 random(options_.seed * 1000003U + static_cast<std::uint64_t>(d) * 7919U +
                           static_cast<std::uint64_t>(options_.rank));
    std::vector<std::vector<double>> start;
    std::vector<std::vector<double>> along;
    double analytic = 0;
    double norm = 0;
    for (std::size_t i = 0; i < problem_.inputs(); ++i) {
      start.push_back(problem_.point(i));
      std::vector<double>& v = along.emplace_back(start.back().size());
      for (std::size_t j = 0; j < v.size(); ++j) {
        const double sign = (random() & 1U) != 0 ? 1.0 : -1.0;
        v[j] = std::isfinite(start.back()[j]) ? sign : 0.0;  // an infinity cannot move
        const double g = problem_.gradient(i)[j];
        analytic += g * v[j];
        norm += g * g;
      }
    }
    const auto move = [&](double by) {
      for (std::size_t i = 0; i < start.size(); ++i) {
        for (std::size_t j = 0; j < start[i].size(); ++j) {
          if (along[i][j] != 0) problem_.point(i)[j] = start[i][j] + by * along[i][j];
        }
      }
      return by;
    };
    compare(move, over_ranks(analytic), std::sqrt(over_ranks(norm)), 0, -1, 0, true);
  }

  Index random_entry() {
    if (options_.among.empty()) return static_cast<Index>(entry_() % static_cast<std::uint64_t>(size()));
    const Index drawn = options_.among[entry_() % options_.among.size()];
    if (0 <= drawn && drawn < size()) return drawn;
    throw UsageError({"gradcheck", "among: entries in [0, " + std::to_string(size()) + ")", std::to_string(drawn)});
  }

  // Entry k in order, or a random one for k = −1, of the rank whose turn it is.
  void check_entry(int rank, Index k) {
    const bool mine = rank == options_.rank && size() > 0;
    std::size_t input = 0;
    Index at = 0;
    if (mine) {
      at = k >= 0 ? k : random_entry();
      while (at >= static_cast<Index>(problem_.point(input).size()))
        at -= static_cast<Index>(problem_.point(input++).size());
    }
    const auto j = static_cast<std::size_t>(at);
    const double start = mine ? problem_.point(input)[j] : 0;
    const bool moves = mine && std::isfinite(start);  // an infinity cannot move: there is no quotient
    const auto move = [&](double by) {
      if (!moves) return by;
      problem_.point(input)[j] = start + by;
      return problem_.point(input)[j] - start;
    };
    const Index cols = mine ? std::max<Index>(problem_.cols(input), 1) : 1;
    const double analytic = mine ? problem_.gradient(input)[j] : 0;
    compare(move, analytic, mine ? largest(problem_.gradient(input)) : 0, input, at / cols, at % cols, moves);
  }

  template <class Move>
  void compare(const Move& move, double analytic, double scale, std::size_t input, Index row, Index col, bool mine) {
    const Difference frozen = difference(detail::GradcheckProblem::Differences::frozen, move);
    const Difference plain = difference(detail::GradcheckProblem::Differences::plain, move);
    const bool kink = over_ranks(frozen.kink || plain.kink ? 1 : 0) > 0;
    step_done();
    if (!mine) return;
    if (kink) {
      ++report_.skipped_kinks;
      return;
    }
    ++report_.checked;
    const double unit = std::max({scale, std::abs(f_), 1e-300});
    const double error = std::abs(analytic - frozen.slope) / unit;
    const double stopped = std::abs(frozen.slope - plain.slope) / unit;
    if (worse(stopped, report_.stopped)) report_.stopped = stopped;
    if (worse(error, report_.worst_relative_error)) {
      report_.worst_relative_error = error;
      report_.input = input;
      report_.row = row;
      report_.col = col;
      report_.analytic = analytic / problem_.scalar_weight();
      report_.numeric = frozen.slope / problem_.scalar_weight();
    }
  }

  void compare_fp32() {
    std::vector<std::vector<double>> fp32;
    std::vector<std::vector<double>> fp64;
    problem_.differentiate_fp32(fp32, fp64);
    std::size_t count = 1;
    for (std::size_t i = 0; i < fp32.size(); ++i) {
      const double unit = std::max(largest(fp64[i]), 1e-300);
      for (std::size_t j = 0; j < fp32[i].size(); ++j) {
        const double gap = std::abs(fp32[i][j] - fp64[i][j]) / unit;
        if (worse(gap, report_.fp32_gap)) report_.fp32_gap = gap;
      }
      count += fp32[i].size();
    }
    // A gradient entry is right to (32 + 2|d|) 2⁻²⁴ of its term, |d| up to about 40 for entries that count; log-probs carry
    // |log p| 2⁻²⁴ into ratios; sums of n terms grow with log n.
    report_.fp32_bound = (128 + 8 * std::log2(static_cast<double>(count))) * 0x1p-24;
  }

  void judge() {
    const Index probes = report_.checked + report_.skipped_kinks;
    std::string& failure = report_.failure;
    if (!finite_)
      failure = "a gradient entry is not finite";
    else if (!(report_.worst_relative_error <= options_.rel))
      failure = "an entry differs from its difference quotient";
    else if (!adds_)
      failure = "a gradient is stored where the slice says to add";
    else if (report_.checked == 0 && expected_ > 0)
      failure = "nothing could be checked";
    else if (static_cast<double>(report_.skipped_kinks) > options_.most_kinks * static_cast<double>(probes))
      failure = "too many probes straddle a kink";
    else if (!(report_.fp32_gap <= report_.fp32_bound))
      failure = "the fp32 tape differs from the fp64 tape";
  }

  detail::GradcheckProblem& problem_;
  const GradcheckOptions& options_;
  GradcheckReport report_;
  double f_ = 0;
  bool finite_ = true;
  bool adds_ = true;
  std::vector<Index> turns_;
  Index probes_ = 0;    // of all ranks
  Index expected_ = 0;  // that this rank compares
  Index done_ = 0;
  std::mt19937_64 entry_{options_.seed * 2654435761U + static_cast<std::uint64_t>(options_.rank)};
};

}  // namespace

std::string GradcheckReport::summary() const {
  std::string line = failure.empty() ? "gradcheck passed" : "gradcheck FAILED: " + failure;
  line += "; worst relative error " + text(worst_relative_error);
  if (row >= 0) {
    line += " at input " + std::to_string(input) + " [" + std::to_string(row) + ", " + std::to_string(col) + "]";
  } else {
    line += " along a random direction";
  }
  line += " (analytic " + text(analytic) + ", numeric " + text(numeric) + "); " + std::to_string(checked) + " checked, " +
          std::to_string(skipped_kinks) + " skipped at kinks; stopped " + text(stopped);
  if (fp32_bound > 0) line += "; fp32 gap " + text(fp32_gap) + " of " + text(fp32_bound) + " allowed";
  return line;
}

namespace detail {

GradcheckProblem::GradcheckProblem(std::span<const View> x0) {
  for (const View& x : x0) {
    if (!is_float(x.dtype)) throw UsageError({"gradcheck", "floating-point inputs", name(x.dtype)});
    shapes_.push_back({x.rows, x.cols});
    std::vector<double>& point = points_.emplace_back();
    for (Index r = 0; r < x.rows; ++r) {
      for (Index c = 0; c < x.cols; ++c) point.push_back(x.get<double>(r, c));
    }
    gradients_.emplace_back(point.size());
  }
}

View GradcheckProblem::point_view(std::size_t i) const { return View(points_[i].data(), shapes_[i].rows, shapes_[i].cols); }

MutableView GradcheckProblem::gradient_view(std::size_t i) {
  return MutableView(gradients_[i].data(), shapes_[i].rows, shapes_[i].cols);
}

std::vector<double> GradcheckProblem::upstream(const Shape& shape, std::uint64_t seed) {
  std::vector<double> weights(static_cast<std::size_t>(shape.rows * shape.cols));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> size(0.25, 2.0);
  for (double& weight : weights) weight = (random() & 1U) != 0 ? size(random) : -size(random);
  return weights;
}

double GradcheckProblem::weigh(const View& value, std::span<const double> weights) {
  double sum = 0;
  for (Index r = 0; r < value.rows; ++r) {
    for (Index c = 0; c < value.cols; ++c)
      sum += weights[static_cast<std::size_t>(r * value.cols + c)] * value.get<double>(r, c);
  }
  return sum;
}

bool GradcheckProblem::holds_one_more(std::span<const double> slice, std::span<const double> gradient) {
  const double unit = 1 + largest(gradient);
  for (std::size_t j = 0; j < slice.size(); ++j) {
    if (std::isfinite(gradient[j]) && !(std::abs(slice[j] - 1 - gradient[j]) <= 1e-12 * unit)) return false;
  }
  return true;
}

GradcheckReport run_gradcheck(GradcheckProblem& problem, const GradcheckOptions& options) {
  return Checker(problem, options).run();
}

}  // namespace detail
}  // namespace losstape
