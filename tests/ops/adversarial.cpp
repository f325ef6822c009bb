// SPDX-License-Identifier: Apache-2.0
// The rows.
#include "tests/ops/adversarial.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/vocab_kernels.h"
#include "tests/support/random.h"

namespace losstape::testing {
namespace {

using Row = std::vector<double>;

class Table {
 public:
  Table(Index vocab, double huge) : vocab_(vocab), huge_(huge) {}

  std::vector<AdversarialRow> make() {
    plain();
    offsets();
    certain();
    peaks();
    ties();
    masked();
    extremes();
    return std::move(rows_);
  }

 private:
  Row noise(double size) {
    Row row(std::size_t(vocab_), 0.0);
    for (double& x : row) x = size * random_.normal();
    return row;
  }
  Row level(double value) { return Row(std::size_t(vocab_), value); }
  // Column j of any number, brought into range.
  Index at(Index j) const { return std::clamp<Index>(j, 0, vocab_ - 1); }
  void add(const std::string& name, Row row, Index target) { rows_.push_back({name, std::move(row), at(target)}); }
  void spike(Row& row, Index j, double value) { row[std::size_t(at(j))] = value; }

  void plain() {
    add("noise", noise(1), vocab_ / 3);
    add("wide noise", noise(8), vocab_ / 2);
    add("faint noise", noise(1e-4), vocab_ - 1);
  }
  void offsets() {
    for (const double offset : {300.0, -300.0, 1e4, -1e4}) {
      Row row = noise(3);
      for (double& x : row) x += offset;
      add("offset " + std::to_string(offset), std::move(row), vocab_ / 4);
      Row sure = level(offset);
      spike(sure, vocab_ / 5, offset + 40);
      add("sure at offset " + std::to_string(offset), std::move(sure), vocab_ / 5);
    }
  }
  void certain() {
    for (const double rest : {1e-1, 1e-3, 1e-5, 1e-7, 1e-9, 1e-12}) {
      const double height = std::log(double(std::max<Index>(vocab_ - 1, 1)) / rest);
      for (const Index j : {vocab_ - 1, vocab_ / 2}) {
        Row row = noise(0.1);
        spike(row, j, height);
        add("sure of its target but for " + std::to_string(rest), row, j);
        add("sure of another column but for " + std::to_string(rest), std::move(row), j + 1 < vocab_ ? j + 1 : 0);
      }
      // The rest is one column.
      Row two = level(-200);
      spike(two, 1, 0);
      spike(two, vocab_ - 1, -std::log(1 / rest));
      add("two columns, 1 - p = " + std::to_string(rest), std::move(two), 1);
    }
  }
  void peaks() {
    for (const double gap : {10.0, 17.0, 25.0, 40.0, 60.0}) {
      Row row = noise(1);
      spike(row, 0, gap);
      add("peaked by " + std::to_string(gap) + " beside the target", std::move(row), vocab_ - 1);
    }
    for (const Index j : {vocab_ - 1, kVocabTile, kVocabTile - 1, 2 * kVocabTile, Index{0}}) {
      Row row = noise(1);
      spike(row, j, 9);
      add("a spike in column " + std::to_string(at(j)), row, j);
      add("a spike in column " + std::to_string(at(j)) + ", target next to it", std::move(row), at(j) == 0 ? 1 : at(j) - 1);
    }
  }
  void ties() {
    add("all equal", level(0.75), vocab_ / 2);
    for (const Index other : {Index{3}, vocab_ - 1}) {
      Row row = noise(1);
      spike(row, 1, 12);
      spike(row, other, 12);
      add("two equal maxima", row, 1);
      add("two equal maxima, another target", std::move(row), 0);
    }
  }
  void masked() {
    constexpr double kMasked = -std::numeric_limits<double>::infinity();
    Row holes = noise(2);
    for (Index j = 0; j < vocab_; j += 3) holes[std::size_t(j)] = kMasked;
    spike(holes, 1, 1);
    add("every third column is -inf", std::move(holes), 1);
    Row third = noise(2);
    std::fill(third.begin() + vocab_ / 3, third.begin() + 2 * vocab_ / 3, kMasked);
    spike(third, vocab_ - 1, 1);
    add("the middle third is -inf", std::move(third), vocab_ - 1);
    Row half = noise(2);
    std::fill(half.begin(), half.begin() + vocab_ / 2, kMasked);
    add("the first half is -inf", std::move(half), vocab_ - 1);
    Row one = level(kMasked);
    spike(one, vocab_ / 2, -3);
    add("one column is not -inf", std::move(one), vocab_ / 2);
  }
  void extremes() {
    Row huge = noise(1);
    spike(huge, 2, huge_);
    spike(huge, vocab_ - 1, -huge_);
    add("the largest and the least number", huge, 2);
    add("the largest and the least number, at the least", std::move(huge), vocab_ - 1);
    Row tiny = noise(1);
    for (double& x : tiny) x *= 1e-41;
    add("denormals", std::move(tiny), vocab_ / 2);
    Row small = noise(1);
    for (double& x : small) x *= 1e-7;
    add("subnormals of f16", std::move(small), vocab_ / 2);
    add(
        "zeros of both signs",
        [&] {
          Row row = level(0);
          for (Index j = 0; j < vocab_; j += 2) row[std::size_t(j)] = -0.0;
          return row;
        }(),
        0);
  }

  Index vocab_;
  double huge_;
  Random random_{5};
  std::vector<AdversarialRow> rows_;
};

}  // namespace

std::vector<AdversarialRow> adversarial_rows(Index vocab, double huge) { return Table(vocab, huge).make(); }

RowTruth::RowTruth(const reference::Matrix& logits, Index row, double T) : temperature(T) {
  const reference::Matrix one = logits.row(row);
  const reference::Matrix found = reference::log_softmax(one, T);
  log_p.assign(found.data(), found.data() + found.size());
  for (const double of_column : log_p) {
    p.push_back(std::exp(of_column));
    rest.push_back(-std::expm1(of_column));
  }
  entropy = reference::entropy(one, T)(0);
  const double top = one.maxCoeff();
  double sum = 0;
  double weighed = 0;
  double squared = 0;
  bool skipped = false;
  for (Index j = 0; j < one.cols(); ++j) {
    const double d = (top - one(0, j)) / T;
    distance.push_back(d);
    if (d == 0 && !skipped) {
      skipped = true;
      continue;
    }
    if (!std::isfinite(d)) continue;
    const double e = std::exp(-d);
    sum += e;
    weighed += e * d;
    squared += e * d * d;
  }
  sum_distance = sum > 0 ? weighed / sum : 0;
  entropy_distance = weighed > 0 ? squared / weighed : 0;
}

}  // namespace losstape::testing
