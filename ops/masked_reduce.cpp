// SPDX-License-Identifier: Apache-2.0
// The masked_reduce node.
#include "ops/masked_reduce.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/error.h"
#include "ops/finite.h"

namespace losstape {
namespace {

constexpr double kCountGuard = 1e-8;  // peers add it to every count
constexpr std::size_t kMostColumns = 32;

struct Extremes {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
};

void join_extremes(Extremes& into, const Extremes& from) {
  // A NaN on either side wins: a metric must not hide it.
  if (from.low < into.low || std::isnan(from.low)) into.low = from.low;
  if (from.high > into.high || std::isnan(from.high)) into.high = from.high;
}

struct MaskedReduceNode {
  static constexpr auto name = "masked_reduce";

  const Packing* packing = nullptr;  // null: one sequence of all rows, on every rank alike
  std::uint64_t version = 0;
  Counts counts;
  Index columns = 0;
  bool sampled = false;  // the last input is a sample mask
  std::array<Per, kMostColumns> per{};
  Index rows = 0;
  Index sequences = 1;

  [[nodiscard]] std::size_t mask_input() const { return static_cast<std::size_t>(columns); }
  [[nodiscard]] Index first_row(Index b) const { return packing == nullptr ? 0 : packing->first_row(b); }
  [[nodiscard]] Index last_row(Index b) const { return packing == nullptr ? rows : packing->last_row(b); }
  [[nodiscard]] ContextGroup group() const { return packing == nullptr ? ContextGroup() : packing->group(); }
  // Sums a sequence: Σ t, then Σ t x of each column.
  [[nodiscard]] Index width() const { return columns + 1; }

  void reserve(auto& c) const {
    c.save(f64, sequences, 1);  // by what a row's mask is multiplied: d scalar 0 / d (t x)
    c.workspace(f64, sequences, width());
    c.workspace(of<Extremes>, columns, 1);
    group().reserve_join(c, of<Extremes>, columns, sequences * width());
  }

  void forward(auto& c) const {
    const auto sums = c.workspace(f64, 0);
    const auto extremes = c.workspace(of<Extremes>, 1);
    for (Index k = 0; k < columns; ++k) extremes(k) = {};
    Status status;
    for (Index b = 0; b < sequences; ++b) {
      const Status found = sum_sequence(c, b, sums, extremes);
      if (status.ok()) status = found;
    }
    group().join(name, extremes.span(), join_extremes, c.workspace(of<std::byte>, 2).span(), sums.span(), status);
    write_scalars(c, sums, extremes);
  }

  void backward(auto& c) const {
    if (packing != nullptr) packing->expect_version(version, name);
    for (Index k = 1; k < columns; ++k) {  // metrics have no derivative, whatever they are made of
      const auto unused = c.grad(static_cast<std::size_t>(k));
      for (Index r = 0; r < rows && unused; ++r) unused.zero_row(r);
    }
    const auto dx = c.grad(0);
    if (!dx) return;
    const auto mask = c.in(mask_input());
    const auto weight = c.saved(f64, 0);
    const double g = c.dout(0)(0);
    Index next = 0;
    for (Index b = 0; b < sequences; ++b) {
      for (Index r = first_row(b); r < last_row(b); ++r) {
        const double m = static_cast<double>(mask(r)) * weight(b);
        dx.write(r, m == 0 ? 0.0 : g * m);
      }
      next = last_row(b);
    }
    for (Index r = next; r < rows; ++r) dx.write(r, 0.0);
  }

 private:
  template <class C>
  [[nodiscard]] double sample(const C& c, Index b) const {
    return sampled ? static_cast<double>(c.in(mask_input() + 1)(b)) : 1.0;
  }

  template <class C>
  Status sum_sequence(C& c, Index b, Block<double> sums, Block<Extremes> extremes) const {
    const auto mask = c.in(mask_input());
    const double a = sample(c, b);
    Status status;
    for (Index k = 0; k < width(); ++k) sums(b, k) = 0;
    const auto refuse = [&](const char* expected, double found, Index r, const std::string& cause = {}) {
      if (status.ok()) status = detail::not_finite(name, expected, found, r, cause);
    };
    if (!std::isfinite(a)) refuse("a finite sample mask", a, b);
    for (Index r = first_row(b); r < last_row(b); ++r) {
      const double t = mask(r);
      if (!std::isfinite(t)) refuse("a finite mask", t, r);
      if (t == 0 || a == 0) {
        sums(b, 0) += t;  // a sequence's own mean counts its tokens whether it is sampled or not
        continue;
      }
      sums(b, 0) += t;
      for (Index k = 0; k < columns; ++k) {
        const double x = c.in(static_cast<std::size_t>(k))(r);
        if (k == 0 && !std::isfinite(x) && c.non_finite() == NonFinite::error) {
          refuse("finite values where the mask is not 0", x, r, c.cause_of(0, r));
        }
        sums(b, k + 1) += t * x;
        join_extremes(extremes(k), {x, x});
      }
    }
    return status;
  }

  template <class C>
  void write_scalars(C& c, Block<double> sums, Block<Extremes> extremes) const {
    double tokens = 0;
    double samples = 0;
    double live = 0;  // sequences that are part of a mean over sequences
    for (Index b = 0; b < sequences; ++b) {
      const double a = sample(c, b);
      tokens += a * sums(b, 0);
      samples += a;
      if (sums(b, 0) > 0) live += a;
    }
    const double per_token = 1 / (counts.tokens.value_or(tokens) + kCountGuard);
    const double per_sequence = 1 / (counts.sequences.value_or(live) + kCountGuard);
    const auto weight = [&](Per how, Index b) {
      const double a = sample(c, b);
      if (how == Per::tokens) return a * per_token;
      if (how == Per::sequences) return a * per_sequence / (sums(b, 0) + kCountGuard);
      return a;
    };
    for (Index k = 0; k < columns; ++k) {
      const auto at = static_cast<std::size_t>(k);
      double scalar = 0;
      if (per[at] == Per::min) scalar = extremes(k).low;
      if (per[at] == Per::max) scalar = extremes(k).high;
      if (per[at] != Per::min && per[at] != Per::max) {
        for (Index b = 0; b < sequences; ++b) {
          if (sample(c, b) != 0) scalar += weight(per[at], b) * sums(b, k + 1);
        }
      }
      c.out(at).write(0, scalar);
    }
    c.out(static_cast<std::size_t>(columns)).write(0, tokens);
    c.out(static_cast<std::size_t>(columns) + 1).write(0, samples);
    for (Index b = 0; b < sequences; ++b) c.saved(f64, 0)(b) = weight(per[0], b);
  }
};

std::string text(const Shape& shape) { return "[" + std::to_string(shape.rows) + ", " + std::to_string(shape.cols) + "]"; }

template <class R>
void check_column(BasicVar<R> column, Index rows, const char* what) {
  const Shape found = column.shape();
  if (found.rows == rows && found.cols == 1) return;
  throw UsageError({"masked_reduce", std::string(what) + " [" + std::to_string(rows) + ", 1]", text(found),
                    "per-token data moves to the rows that predict it by packing.to_predictions"});
}

template <class R>
void check_mask(BasicVar<R> mask, const char* what) {
  if (mask.tape == nullptr || !mask.tape->wants_grad(mask)) return;
  throw UsageError({"masked_reduce", std::string(what) + " without a gradient", "one that is differentiated",
                    "reductions differentiate values only: stop_gradient it, or multiply it into the values"});
}

template <class R>
VarList<R> record(std::span<const ReducedColumn<R>> columns, BasicVar<R> token_mask, BasicVar<R> sample_mask,
                  const Packing* packing, const Counts& counts) {
  if (columns.empty() || columns.size() > kMostColumns) {
    throw UsageError(
        {"masked_reduce", "between 1 and " + std::to_string(kMostColumns) + " columns", std::to_string(columns.size())});
  }
  if (columns[0].per == Per::min || columns[0].per == Per::max) {
    throw UsageError({"masked_reduce", "a first column that is summed", "an extremum", "extrema are metrics"});
  }
  for (const std::optional<double>& count : {counts.tokens, counts.sequences}) {
    if (count && !(*count >= 0 && std::isfinite(*count))) {
      throw UsageError({"masked_reduce", "counts that are finite and at least 0", std::to_string(*count)});
    }
  }
  MaskedReduceNode node;
  node.packing = packing;
  node.version = packing == nullptr ? 0 : packing->version();
  node.counts = counts;
  node.columns = static_cast<Index>(columns.size());
  node.sampled = static_cast<bool>(sample_mask);
  node.rows = packing == nullptr ? columns[0].column.rows() : packing->rows();
  node.sequences = packing == nullptr ? 1 : packing->sequences();
  std::array<BasicVar<R>, kMostColumns + 2> inputs;
  std::size_t count = 0;
  for (const ReducedColumn<R>& column : columns) {
    check_column(column.column, node.rows, "columns");
    node.per[count] = column.per;
    inputs[count++] = column.column;
  }
  check_column(token_mask, node.rows, "a mask");
  check_mask(token_mask, "a mask");
  inputs[count++] = token_mask;
  if (node.sampled) {
    check_column(sample_mask, node.sequences, "a sample mask");
    check_mask(sample_mask, "a sample mask");
    inputs[count++] = sample_mask;
  }
  Outputs outputs{{1, 1}};
  for (std::size_t k = 1; k < columns.size() + 2; ++k) outputs.add({1, 1, Adjoint::no});
  return columns[0].column.tape->record(node, std::span<const BasicVar<R>>(inputs.data(), count), outputs);
}

}  // namespace

template <class R>
VarList<R> masked_reduce(std::span<const ReducedColumn<R>> columns, BasicVar<R> token_mask, BasicVar<R> sample_mask,
                         const Packing& packing, const Counts& counts) {
  return record(columns, token_mask, sample_mask, &packing, counts);
}

template <class R>
BasicVar<R> masked_mean(BasicVar<R> x, BasicVar<R> mask, const Packing& packing, const MeanOptions& options) {
  const std::array<ReducedColumn<R>, 1> column{{{x, Per::tokens}}};
  return record<R>(column, mask, {}, &packing, {.tokens = options.count})[0];
}

template <class R>
BasicVar<R> masked_mean(BasicVar<R> x, BasicVar<R> mask, const MeanOptions& options) {
  const std::array<ReducedColumn<R>, 1> column{{{x, Per::tokens}}};
  return record<R>(column, mask, {}, nullptr, {.tokens = options.count})[0];
}

template VarList<float> masked_reduce(std::span<const ReducedColumn<float>>, BasicVar<float>, BasicVar<float>,
                                      const Packing&, const Counts&);
template VarList<double> masked_reduce(std::span<const ReducedColumn<double>>, BasicVar<double>, BasicVar<double>,
                                       const Packing&, const Counts&);
template BasicVar<float> masked_mean(BasicVar<float>, BasicVar<float>, const Packing&, const MeanOptions&);
template BasicVar<double> masked_mean(BasicVar<double>, BasicVar<double>, const Packing&, const MeanOptions&);
template BasicVar<float> masked_mean(BasicVar<float>, BasicVar<float>, const MeanOptions&);
template BasicVar<double> masked_mean(BasicVar<double>, BasicVar<double>, const MeanOptions&);

}  // namespace losstape
