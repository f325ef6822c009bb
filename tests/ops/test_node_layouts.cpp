// SPDX-License-Identifier: Apache-2.0
// What holds for every node and loss however its sequences are packed and shared over context ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "tests/ops/node_table.h"

namespace losstape::testing {
namespace {

// The counts of the whole batch, fixed, so that a part of it divides by the same numbers.
Batch with_counts(Batch batch) {
  batch.counts = {.tokens = 9.0, .sequences = 3.0};
  return batch;
}

// Rows of x that belong to those sequences, in each input's domain.
std::vector<Matrix> taken(const Sample& sample, const Batch& batch, const std::vector<Matrix>& x,
                          const std::vector<Index>& order) {
  std::vector<Matrix> y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::vector<Index> rows = sample.inputs[i] == Domain::sequence ? order : rows_of_sequences(batch, order);
    for (Index e = 0; e < batch.extra && sample.inputs[i] == Domain::logits; ++e) rows.push_back(batch.tokens() + e);
    y.push_back(x[i](rows, Eigen::all));
  }
  return y;
}

Matrix taken_rows(Domain domain, const Batch& batch, const Matrix& y, const std::vector<Index>& order) {
  if (domain == Domain::scalar) return y;
  return y(domain == Domain::sequence ? order : rows_of_sequences(batch, order), Eigen::all);
}

constexpr double kUlp = 0x1p-23;  // of fp32, relative: scalars are fp64 sums, rounded once

void check_metrics(const Outcome& found, const Outcome& right) {
  REQUIRE(found.metrics.size() == right.metrics.size());
  for (std::size_t k = 0; k < right.metrics.size(); ++k) {
    CAPTURE(k);
    CHECK(far_from(Matrix::Constant(1, 1, found.metrics[k]), Matrix::Constant(1, 1, right.metrics[k]), kUlp, "metric") ==
          "");
  }
}

}  // namespace

TEST_CASE("a pack gives each sequence the bits that it has alone") {
  for (const Sample& sample : samples()) {
    for (const Batch& plain : small_batches()) {
      CAPTURE(sample.title());
      CAPTURE(plain.name);
      const Batch batch = with_counts(plain);
      const std::vector<Matrix> x = sample.values(batch);
      const Matrix seed = upstream_of(sample, batch);
      const Outcome packed = evaluate<float>(sample, batch, x, seed, {});
      for (Index b = 0; b < batch.sequences(); ++b) {
        CAPTURE(b);
        const std::vector<Index> only{b};
        const Batch alone = take_sequences(batch, only);
        const Outcome found =
            evaluate<float>(sample, alone, taken(sample, batch, x, only), taken_rows(sample.output, batch, seed, only), {});
        if (sample.output != Domain::scalar) {
          CHECK(difference(found.y, taken_rows(sample.output, batch, packed.y, only)) == "");
        }
        for (std::size_t i = 0; i < x.size(); ++i) {
          const Domain domain = sample.inputs[i];
          CHECK(difference(found.gradients[i], taken_rows(domain, batch, packed.gradients[i], only)) == "");
        }
      }
    }
  }
}

TEST_CASE("the order of sequences in a pack changes no bit of any row, and scalars by no more than an ulp of their sum") {
  for (const Sample& sample : samples()) {
    for (const Batch& batch : small_batches()) {
      CAPTURE(sample.title());
      CAPTURE(batch.name);
      const std::vector<Matrix> x = sample.values(batch);
      const Matrix seed = upstream_of(sample, batch);
      const Outcome packed = evaluate<float>(sample, batch, x, seed, {});
      std::vector<Index> order(std::size_t(batch.sequences()));
      std::iota(order.begin(), order.end(), Index{0});
      for (int turn = 0; turn < 4; ++turn) {
        if (turn % 2 == 0) std::reverse(order.begin(), order.end());
        if (turn % 2 == 1) std::rotate(order.begin(), order.begin() + 1, order.end());
        const Outcome found = evaluate<float>(sample, take_sequences(batch, order), taken(sample, batch, x, order),
                                              taken_rows(sample.output, batch, seed, order), {});
        CHECK(found.faults == "");
        if (sample.output != Domain::scalar) {
          CHECK(difference(found.y, taken_rows(sample.output, batch, packed.y, order)) == "");
        } else {
          CHECK(far_from(found.y, packed.y, kUlp, "y") == "");
          check_metrics(found, packed);
        }
        for (std::size_t i = 0; i < x.size(); ++i) {
          CHECK(difference(found.gradients[i], taken_rows(sample.inputs[i], batch, packed.gradients[i], order)) == "");
        }
      }
    }
  }
}

TEST_CASE("context ranks give every row the bits that it has on one rank, and scalars within an ulp") {
  const Batch& batch = context_batch();
  struct Split {
    int ranks;
    ContextLayout layout;
  };
  for (const Sample& sample : samples()) {
    if (!sample.over_context) continue;
    const std::vector<Matrix> x = sample.values(batch);
    const Matrix seed = upstream_of(sample, batch);
    const Outcome single = evaluate<float>(sample, batch, x, seed, {});
    for (const Split& split :
         {Split{2, ContextLayout::zigzag}, Split{3, ContextLayout::zigzag}, Split{4, ContextLayout::zigzag},
          Split{2, ContextLayout::contiguous}, Split{3, ContextLayout::contiguous}, Split{4, ContextLayout::contiguous}}) {
      CAPTURE(sample.title());
      CAPTURE(split.ranks);
      CAPTURE(int(split.layout));
      const Outcome found =
          evaluate<float>(sample, batch, x, seed, {.context_ranks = split.ranks, .context_layout = split.layout});
      CHECK(found.faults == "");
      if (sample.output == Domain::token) {
        CHECK(difference(found.y, single.y) == "");
      } else {
        CHECK(far_from(found.y, single.y, kUlp, "y") == "");
      }
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (sample.inputs[i] == Domain::sequence) {
          CHECK(far_from(found.gradients[i], single.gradients[i], kUlp, "gradient") == "");
        } else {
          CHECK(difference(found.gradients[i], single.gradients[i]) == "");
        }
      }
      check_metrics(found, single);
    }
  }
}

TEST_CASE("tensor and context ranks together give the reference's value and gradient") {
  const Batch& batch = context_batch();
  for (const Sample& sample : samples()) {
    if (!sample.over_context) continue;
    CAPTURE(sample.title());
    const std::vector<Matrix> x = sample.values(batch);
    const Matrix seed = upstream_of(sample, batch);
    const Truth right = sample.truth(batch, x, seed);
    const Outcome found = evaluate<double>(
        sample, batch, x, seed,
        {.dtype = DType::f64, .cuts = {3}, .context_ranks = 2, .context_layout = ContextLayout::zigzag, .chunk_rows = 5});
    CHECK(found.faults == "");
    CHECK(far_from(found.y, right.y, 1e-12, "y") == "");
    for (std::size_t i = 0; i < x.size(); ++i)
      CHECK(far_from(found.gradients[i], right.gradients[i], 1e-12, "gradient") == "");
  }
}

}  // namespace losstape::testing
