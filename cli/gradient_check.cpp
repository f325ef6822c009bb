// SPDX-License-Identifier: Apache-2.0
// Which entries are checked, and the ranks' reports put together.
#include "cli/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "cli/buffers.h"
#include "distributed/threads.h"
#include "engine/gradcheck.h"
#include "ops/vocab_stats.h"

namespace losstape::cli {
namespace {

constexpr double kElements = 4e8;  // logits that all probes may read together
constexpr Index kEvaluations = 4;  // of a probe
constexpr Index kDirections = 8;

// Of single entries over all ranks.
Index probes_of(const View& logits) {
  const double most = kElements / static_cast<double>(kEvaluations * std::max<Index>(logits.size(), 1));
  return std::clamp(static_cast<Index>(most), Index{8}, Index{64});
}

// The rows that the loss needs: those that predict a token whose masks are not 0.
std::vector<Index> needed_rows(const RecordedBatch& batch, const Packing& packing) {
  std::vector<Index> rows;
  for (Index r = 0; r < packing.rows(); ++r) {
    const Index target = packing.target_row(r);
    if (target < 0 || batch.columns.token_mask.get<double>(target) == 0) continue;
    const View& sample_mask = batch.columns.sample_mask;
    if (!sample_mask.empty() && sample_mask.get<double>(packing.sequence(r)) == 0) continue;
    rows.push_back(r);
  }
  return rows;
}

// Entries of this rank's shard worth drawing: of each needed row the token's own, where it is here, and another.
std::vector<Index> entries_of(const RecordedBatch& batch, const Packing& packing, const VocabShard& shard) {
  std::vector<Index> entries;
  if (shard.width() == 0) return entries;
  std::mt19937_64 random(static_cast<std::uint64_t>(shard.begin));
  for (const Index r : needed_rows(batch, packing)) {
    const auto id = batch.input_ids.get<Index>(packing.target_row(r));
    if (shard.holds(id)) entries.push_back(r * shard.width() + id - shard.begin);
    entries.push_back(r * shard.width() + static_cast<Index>(random() % static_cast<std::uint64_t>(shard.width())));
  }
  return entries;
}

struct RankReport {
  GradcheckReport directions;
  GradcheckReport entries;
};

RankReport check_rank(const RecordedBatch& batch, const LossChoice& choice, const RunOptions& run,
                      Communicator& communicator, const std::function<void(double)>& progress) {
  const VocabShard shard = VocabShard::even(communicator, batch.logits.cols);
  const LogitsShard logits(batch.logits, shard.begin, shard.end, run.dtype);
  Packing packing;
  batch.lay_out(packing);
  const auto loss = [&](auto& /*tape*/, auto z) {
    const auto stats = vocab_stats(z, packing, batch.input_ids, shard, VocabStatsOptions{.chunk_rows = run.chunk_rows});
    return record_loss(choice, stats.logprob, packing, batch.columns, batch.counts).loss;
  };

  const Index ranks = communicator.size();
  const Index entries = (probes_of(batch.logits) + ranks - 1) / ranks;
  const double all = static_cast<double>(kDirections + entries * ranks);
  GradcheckOptions options;
  options.most_kinks = 1;  // judged over all ranks
  options.fp32 = Fp32Check::skip;
  options.rank = communicator.rank();
  options.sum = [&](double value) { return communicator.all_reduce(value, Reduce::sum); };
  const bool speaks = progress && communicator.rank() == 0;

  options.directions = kDirections;
  options.coordinates.assign(static_cast<std::size_t>(ranks), 0);
  if (speaks) options.progress = [&](double share) { progress(share * kDirections / all); };
  RankReport report;
  report.directions = gradcheck(loss, logits.view(), options);

  options.directions = 0;
  options.entries = entries;
  options.coordinates.assign(static_cast<std::size_t>(ranks), entries);
  options.among = entries_of(batch, packing, shard);
  if (speaks)
    options.progress = [&](double share) { progress((kDirections + share * static_cast<double>(entries * ranks)) / all); };
  report.entries = gradcheck(loss, logits.view(), options);
  return report;
}

}  // namespace

GradientCheck check_gradient(const RecordedBatch& batch, const LossChoice& choice, const RunOptions& run,
                             const std::function<void(double)>& progress) {
  const std::vector<RankReport> reports = threads::run(run.tensor_parallel, [&](Communicator& communicator) {
    return check_rank(batch, choice, run, communicator, progress);
  });
  GradientCheck check;
  const auto add = [&](const GradcheckReport& report) {
    check.checked += report.checked;
    check.skipped_kinks += report.skipped_kinks;
    // NaN is the worst, and stays.
    if (!(report.worst_relative_error <= check.worst_relative_error) && !std::isnan(check.worst_relative_error)) {
      check.worst_relative_error = report.worst_relative_error;
    }
    if (check.failure.empty()) check.failure = report.failure;
  };
  add(reports.front().directions);  // all ranks moved together: their reports are one
  for (const RankReport& report : reports) add(report.entries);
  if (!check.failure.empty()) return check;
  if (check.checked == 0) {
    check.failure = "nothing could be checked";
  } else if (check.skipped_kinks > check.checked / 3) {
    check.failure = "too many probes straddle a kink";
  }
  return check;
}

}  // namespace losstape::cli
