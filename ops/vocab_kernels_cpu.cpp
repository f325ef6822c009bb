// SPDX-License-Identifier: Apache-2.0
// The CPU's two passes over a row.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "engine/error.h"
#include "ops/vocab_kernels.h"

namespace losstape {
namespace {

// Partial sums a tile is added up in: independent chains, joined in a fixed order.
constexpr Index kLanes = 64;

template <class R, class T>
Index first_maximum(const T* x, Index n) {
  R largest = -std::numeric_limits<R>::infinity();
  Index at = -1;
  for (Index j = 0; j < n; ++j) {
    const R value = convert<R>(x[j]);
    if (value > largest) {
      largest = value;
      at = j;
    }
  }
  return at;
}

// Adds lanes up as a tree of fixed shape.
double sum_lanes(std::array<double, kLanes> sums) {
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t l = 0; l < width; ++l) sums[l] += sums[l + width];
  }
  return sums[0];
}

// Statistics of n columns that lie in one tile. m stays the raw logit; s and u are of (x − m) · scale.
template <class R, class T>
RowStats tile_stats(const T* x, Index n, double scale) {
  const Index top = first_maximum<R>(x, n);
  if (top < 0) {
    // Every comparison failed: the columns are −∞, or NaN, which has to show.
    const bool nan = std::any_of(x, x + n, [](T value) { return std::isnan(convert<R>(value)); });
    RowStats none;
    if (nan) none.s = std::numeric_limits<double>::quiet_NaN();
    return none;
  }
  const auto m = convert<double>(x[top]);
  std::array<double, kLanes> s{};
  std::array<double, kLanes> u{};
  for (Index j = 0; j < n; ++j) {
    if (j == top) continue;
    const double d = (convert<double>(x[j]) - m) * scale;
    const double e = rounded_exp<R>(d);
    const auto lane = static_cast<std::size_t>(j % kLanes);
    s[lane] += e;
    u[lane] += e == 0 ? 0.0 : e * d;  // "equals 0": e^−∞ leaves nothing, NaN passes
  }
  return {m, sum_lanes(s), sum_lanes(u)};
}

template <class R, class T>
LocalRow read_row(const T* x, const VocabShard& shard, double temperature) {
  RowStats row;  // m as stored
  const double scale = 1 / temperature;
  const Index end = shard.begin + shard.real_width();
  for (Index tile = shard.begin; tile < end;) {
    const Index next = std::min(end, (tile / kVocabTile + 1) * kVocabTile);
    row = join(row, tile_stats<R>(x + (tile - shard.begin), next - tile, scale), temperature);
    tile = next;
  }
  return {{row.m / temperature, row.s, row.u}, row.m};
}

template <class R, class S>
void store_row(S* to, Index n, bool add, const auto& value_of) {
  if (add) {
    for (Index j = 0; j < n; ++j) to[j] = convert<S>(static_cast<R>(convert<R>(to[j]) + value_of(j)));
  } else {
    for (Index j = 0; j < n; ++j) to[j] = convert<S>(value_of(j));
  }
}

template <class R, class T, class S>
void write_row(S* to, const T* x, bool add, const VocabShard& shard, const RowGradient& row,
               std::span<PointGradient> points) {
  // The points' values first: their logits may be where the gradient goes, and an added-to element is needed as it was.
  for (PointGradient& point : points) {
    const double own = point_gradient(row, convert<double>(x[point.column]), point.adjoint);
    point.value = add ? static_cast<double>(convert<R>(to[point.column])) + own : own;
  }
  const RowScalars<R> form(row);
  store_row<R>(to, shard.real_width(), add, [&](Index j) { return form(convert<double>(x[j])); });
  for (const PointGradient& point : points) to[point.column] = convert<S>(static_cast<R>(point.value));
  if (!add) std::fill(to + shard.real_width(), to + shard.width(), convert<S>(0.0F));
}

}  // namespace

template <class R>
LocalRow local_row(const Values<R>& logits, Index r, const VocabShard& shard, double temperature) {
  LocalRow found;
  with_float_type(logits.view().dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    found = read_row<R>(logits.view().template row<T>(r), shard, temperature);
  });
  return found;
}

template <class R>
void write_softmax_row(const GradSlice<R>& slice, const Values<R>& logits, Index r, const VocabShard& shard,
                       const RowGradient& row, std::span<PointGradient> points) {
  with_float_type(logits.view().dtype, [&](auto in) {
    with_float_type(slice.dtype(), [&](auto out) {
      using T = typename decltype(in)::type;
      using S = typename decltype(out)::type;
      write_row<R>(slice.memory().template row<S>(r), logits.view().template row<T>(r), slice.adds(), shard, row, points);
    });
  });
}

void check_logits(const View& logits, const VocabShard& shard, const char* operation) {
  if (logits.cols != shard.width()) {
    throw UsageError(
        {operation,
         "logits with a column for each of the shard's " + std::to_string(shard.width()) + " columns [" +
             std::to_string(shard.begin) + ", " + std::to_string(shard.end) + ")",
         std::to_string(logits.cols) + " columns",
         logits.cols == shard.vocab_size ? "these are the whole vocabulary's logits: pass this rank's shard of them" : ""});
  }
  if (!is_float(logits.dtype)) {
    throw UsageError({operation, "floating-point logits", name(logits.dtype)});
  }
  if (logits.cols > 1 && logits.col_stride != 1) {
    throw UsageError({operation, "row-major logits, a row's columns side by side",
                      std::string(name(logits.order())) + " logits",
                      "Eigen's matrices are column-major unless declared with Eigen::RowMajor"});
  }
}

template LocalRow local_row(const Values<float>&, Index, const VocabShard&, double);
template LocalRow local_row(const Values<double>&, Index, const VocabShard&, double);
template void write_softmax_row(const GradSlice<float>&, const Values<float>&, Index, const VocabShard&, const RowGradient&,
                                std::span<PointGradient>);
template void write_softmax_row(const GradSlice<double>&, const Values<double>&, Index, const VocabShard&,
                                const RowGradient&, std::span<PointGradient>);

}  // namespace losstape
