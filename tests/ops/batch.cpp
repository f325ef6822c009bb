// SPDX-License-Identifier: Apache-2.0
// How the batches are made, and taken apart.
#include "tests/ops/batch.h"

#include <cmath>
#include <limits>

#include "tests/support/random.h"

namespace losstape::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

double garbage(Random& random) {
  switch (random.below(4)) {
    case 0: return kNan;
    case 1: return kInf;
    case 2: return -kInf;
    default: return 1e30;
  }
}

void set_explicit_targets(Batch& batch) {
  for (const Index target : batch.targets()) batch.explicit_targets.push_back(target < 0 ? -100 : target);
}

double in_fp32(double value) { return static_cast<double>(static_cast<float>(value)); }

}  // namespace

Index Batch::sequence_of(Index g) const {
  for (Index b = 0; b < sequences(); ++b) {
    if (padded[std::size_t(b)] <= g && g < padded[std::size_t(b) + 1]) return b;
  }
  return -1;
}

bool Batch::is_real(Index g) const {
  const Index b = sequence_of(g);
  return b >= 0 && g - padded[std::size_t(b)] < length(b);
}

Index Batch::target_row(Index g) const {
  const Index b = sequence_of(g);
  return b >= 0 && g + 1 - padded[std::size_t(b)] < length(b) ? g + 1 : -1;
}

Index Batch::target(Index g) const {
  const Index row = target_row(g);
  return row < 0 ? -1 : ids[std::size_t(row)];
}

std::vector<Index> Batch::targets() const {
  std::vector<Index> list;
  for (Index g = 0; g < logits.rows(); ++g) list.push_back(target(g));
  return list;
}

double Batch::at_prediction(const std::vector<double>& column, Index g) const {
  const Index row = target_row(g);
  return row < 0 ? 0.0 : column[std::size_t(row)];
}

LossColumns Batch::columns() const {
  return {.token_mask = token_mask,
          .advantages = advantages,
          .prev_logprobs = prev,
          .generation_logprobs = generation,
          .reference_logprobs = reference,
          .sample_mask = sample_mask};
}

void Batch::assign(Packing& packing, ContextGroup group, ContextLayout layout) const {
  packing.assign(cu, padded, group, layout);
}

Batch make_batch(const BatchShape& shape) {
  Random random(shape.seed);
  Batch batch;
  batch.name = shape.name;
  batch.vocab = shape.vocab;
  batch.stored = shape.stored == 0 ? shape.vocab : shape.stored;
  batch.extra = shape.extra;
  batch.poisoned = shape.poison;
  batch.cu = {0};
  batch.padded = {0};
  for (std::size_t b = 0; b < shape.lengths.size(); ++b) {
    batch.cu.push_back(batch.cu.back() + shape.lengths[b]);
    batch.padded.push_back(batch.padded.back() + (shape.padded.empty() ? shape.lengths[b] : shape.padded[b]));
    batch.sample_mask.push_back(b % 3 == 1 && shape.lengths.size() > 2 ? 0.0 : b % 3 == 2 ? 0.5 : 1.0);
  }
  const Index tokens = batch.tokens();
  batch.logits.resize(tokens + batch.extra, batch.stored);
  for (Index g = 0; g < batch.logits.rows(); ++g) {
    for (Index j = 0; j < batch.stored; ++j) {
      const bool padding = j >= batch.vocab || !batch.is_real(g);
      batch.logits(g, j) = shape.poison && padding ? garbage(random) : in_fp32(2 * random.normal());
    }
  }
  for (Index g = 0; g < tokens; ++g) {
    batch.ids.push_back(batch.is_real(g) ? random.below(batch.vocab) : shape.poison ? -7 : 0);
    const bool unused = shape.poison && !batch.is_real(g);
    const Index first = unused ? -5 : random.below(batch.vocab);
    batch.gathered.insert(batch.gathered.end(), {first, unused ? -5 : random.below(batch.vocab), first});
    batch.extra_rows.push_back(random.chance(0.7) ? 1 : 0);
  }
  // Previous log-probs near the present ones, so that ratios lie on both sides of the clip range.
  const reference::Vector logp = reference::logprob(batch.logits.leftCols(batch.vocab), batch.targets());
  for (Index g = 0; g < tokens; ++g) {
    const double now = g > 0 && batch.target_row(g - 1) == g ? logp(g - 1) : -1.0;
    const bool masked = !batch.is_real(g) || random.chance(0.25);
    const auto near_now = [&](double by) { return in_fp32(now + by * random.normal()); };
    const bool bad = shape.poison && masked;
    batch.token_mask.push_back(masked ? 0 : 1);
    batch.advantages.push_back(bad ? garbage(random) : in_fp32(random.normal()));
    batch.prev.push_back(bad ? garbage(random) : near_now(0.3));
    batch.generation.push_back(bad ? garbage(random) : near_now(0.3));
    batch.reference.push_back(bad ? garbage(random) : near_now(0.5));
  }
  set_explicit_targets(batch);
  return batch;
}

const std::vector<Batch>& small_batches() {
  static const std::vector<Batch> batches = [] {
    std::vector<Batch> made;
    made.push_back(make_batch({.name = "plain", .lengths = {4, 3}, .vocab = 5, .seed = 11}));
    for (const bool poison : {false, true}) {
      made.push_back(make_batch({.name = poison ? "ragged, poisoned" : "ragged",
                                 .lengths = {5, 0, 1, 4, 7},
                                 .padded = {6, 2, 2, 4, 8},
                                 .vocab = 11,
                                 .stored = 13,
                                 .extra = 3,
                                 .poison = poison,
                                 .seed = 12}));
    }
    made.push_back(make_batch({.name = "one sequence", .lengths = {6}, .vocab = 7, .seed = 13}));
    return made;
  }();
  return batches;
}

const Batch& wide_batch() {
  static const Batch batch = make_batch(
      {.name = "wide", .lengths = {3, 2}, .padded = {4, 2}, .vocab = 9001, .stored = 9008, .poison = true, .seed = 14});
  return batch;
}

const Batch& context_batch() {
  static const Batch batch = make_batch({.name = "for context ranks",
                                         .lengths = {22, 0, 1, 24, 17},
                                         .padded = {24, 24, 24, 24, 24},
                                         .vocab = 7,
                                         .stored = 8,
                                         .extra = 2,
                                         .poison = true,
                                         .seed = 15});
  return batch;
}

std::vector<Index> rows_of_sequences(const Batch& batch, std::span<const Index> order) {
  std::vector<Index> rows;
  for (const Index b : order) {
    for (Index g = batch.padded[std::size_t(b)]; g < batch.padded[std::size_t(b) + 1]; ++g) rows.push_back(g);
  }
  return rows;
}

Batch take_sequences(const Batch& batch, std::span<const Index> order) {
  Batch taken;
  taken.name = batch.name;
  taken.vocab = batch.vocab;
  taken.stored = batch.stored;
  taken.extra = batch.extra;
  taken.counts = batch.counts;
  taken.poisoned = batch.poisoned;
  taken.cu = {0};
  taken.padded = {0};
  for (const Index b : order) {
    taken.cu.push_back(taken.cu.back() + batch.length(b));
    taken.padded.push_back(taken.padded.back() + batch.padded[std::size_t(b) + 1] - batch.padded[std::size_t(b)]);
    taken.sample_mask.push_back(batch.sample_mask[std::size_t(b)]);
  }
  std::vector<Index> rows = rows_of_sequences(batch, order);
  for (const Index g : rows) {
    const auto at = std::size_t(g);
    taken.ids.push_back(batch.ids[at]);
    taken.token_mask.push_back(batch.token_mask[at]);
    taken.advantages.push_back(batch.advantages[at]);
    taken.prev.push_back(batch.prev[at]);
    taken.generation.push_back(batch.generation[at]);
    taken.reference.push_back(batch.reference[at]);
    taken.extra_rows.push_back(batch.extra_rows[at]);
    for (Index k = 0; k < Batch::kGathered; ++k) {
      taken.gathered.push_back(batch.gathered[std::size_t(g * Batch::kGathered + k)]);
    }
  }
  for (Index e = 0; e < batch.extra; ++e) rows.push_back(batch.tokens() + e);
  taken.logits = batch.logits(rows, Eigen::all);
  set_explicit_targets(taken);
  return taken;
}

}  // namespace losstape::testing
