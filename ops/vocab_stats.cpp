// SPDX-License-Identifier: Apache-2.0
// The vocab_stats node: statistics, one join, row outputs; backward from saved row scalars.
#include "ops/vocab_stats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "engine/error.h"
#include "ops/row_gradient.h"
#include "ops/row_stats.h"
#include "ops/vocab_kernels.h"

namespace losstape {
namespace {

constexpr const char* kName = "vocab_stats";

// A row's slot in the collective. Only the target's owner gives its logit; the others give 0, so a sum finds it.
struct Slot {
  RowStats stats;
  double target = 0;
};
static_assert(sizeof(Slot) == 32);

void join_slots(Slot& into, const Slot& from) {
  into.stats = join(into.stats, from.stats);
  into.target += from.target;
}

// Rows, their targets and ids: a packing's, or explicit ones.
struct RowMap {
  const Packing* packing = nullptr;
  std::uint64_t version = 0;
  View ids;  // input ids of the pack, or a target a row
  Index rows = 0;
  Index ignore_index = -100;

  [[nodiscard]] bool is_real(Index r) const { return packing == nullptr ? r < rows : packing->is_real(r); }
  [[nodiscard]] Index global_row(Index r) const { return packing == nullptr ? r : packing->global_row(r); }
  // Where the row's target stands in ids, or −1.
  [[nodiscard]] Index target_place(Index r) const {
    const Index place = packing == nullptr ? r : packing->target_row(r);
    return place >= 0 && ids.get<Index>(place) == ignore_index ? -1 : place;
  }
};

struct VocabStatsNode {
  static constexpr auto name = kName;
  static constexpr bool in_place = true;  // a row's logits are not read again once its gradient is written

  RowMap map;
  VocabShard shard;
  VocabStatsOptions options;
  Index gathered = 0;  // K
  Status status;       // what the caller's checks found on this rank

  // Outputs: log-prob, then those asked for.
  [[nodiscard]] std::size_t entropy_output() const { return 1; }
  [[nodiscard]] std::size_t gathered_output() const { return options.entropy ? 2 : 1; }
  [[nodiscard]] std::size_t lse_output() const { return gathered_output() + (gathered > 0 ? 1 : 0); }
  [[nodiscard]] bool needs_no_target() const { return options.entropy || options.lse || gathered > 0; }
  [[nodiscard]] bool wants_extras(Index r) const {
    return needs_no_target() && map.is_real(r) && (options.rows.empty() || options.rows.get<double>(map.global_row(r)) != 0);
  }
  [[nodiscard]] Index gathered_id(Index r, Index k) const { return options.gathered.get<Index>(map.global_row(r), k); }

  void reserve(auto& c) const {
    const Index rows = map.rows;
    c.save(c.real, rows, 3);  // raw maximum, log1p(s), u / (1 + s)
    c.save(of<RowFault>, rows, 1);
    c.workspace(of<Slot>, rows, 1);
    c.workspace(f64, rows, gathered);
    shard.group.reserve_join(c, of<Slot>, rows, rows * gathered);
    c.workspace(of<PointGradient>, c.threads(), gathered + 1);
  }

  void forward(auto& c) {
    const auto slots = c.workspace(of<Slot>, 0);
    const auto gathered_logits = c.workspace(f64, 1);
    if (status.ok()) {
      status = check_ids();
      if (status.ok()) take_statistics(c, slots, gathered_logits);
    }
    shard.group.join(kName, slots.span(), join_slots, c.workspace(of<std::byte>, 2).span(), gathered_logits.span(), status,
                     shard.group.size() > 1 ? agreement(sizeof(real_of<decltype(c)>)) : 0);
    c.pool().for_ranges(map.rows, [&](Index begin, Index end, int) {
      for (Index r = begin; r < end; ++r) write_outputs(c, r, slots(r), gathered_logits);
    });
  }

  void backward(auto& c) const {
    if (map.packing != nullptr) map.packing->expect_version(map.version, kName);
    if (!c.wants_grad(0)) return;
    check_adjoints(c);  // before the slice is asked for: a refusal leaves it as it was
    const auto slice = c.grad(0);
    const auto points = c.workspace(of<PointGradient>, 3);
    const Index rows = slice.rows();
    const Index chunk = options.chunk_rows > 0 ? options.chunk_rows : std::max<Index>(rows, 1);
    for (Index from = 0; from < rows; from += chunk) {
      c.pool().for_ranges(std::min(chunk, rows - from), [&](Index begin, Index end, int thread) {
        const std::span<PointGradient> own(&points(thread, 0), static_cast<std::size_t>(gathered) + 1);
        for (Index r = from + begin; r < from + end; ++r) write_gradient(c, slice, r, own);
      });
    }
  }

  const char* explain(Index row, const auto& c) const {
    const RowFault fault = c.saved(of<RowFault>, 1)(row);
    return fault == RowFault::none || fault == RowFault::not_read ? "the target's logit is -inf" : describe(fault);
  }

 private:
  // A hash of what every rank of the group must have alike: all but the columns of the vocabulary.
  [[nodiscard]] std::uint64_t agreement(std::size_t real_size) const {
    if (!status.ok()) return 0;
    std::uint64_t hash = 0xcbf29ce484222325U;
    const auto add = [&](std::uint64_t number) {
      hash = (hash ^ number) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 29U;
    };
    add(real_size);
    add(std::bit_cast<std::uint64_t>(options.temperature));
    add((options.entropy ? 1U : 0U) + (options.lse ? 2U : 0U));
    for (Index r = 0; r < map.rows; ++r) {
      const Index place = map.target_place(r);
      add(place < 0 ? ~std::uint64_t{0} : map.ids.get<std::uint64_t>(place));
      if (!wants_extras(r)) continue;
      add(1);
      for (Index k = 0; k < gathered; ++k) add(static_cast<std::uint64_t>(gathered_id(r, k)));
    }
    return hash;
  }

  // Every label that will be used lies in the vocabulary.
  [[nodiscard]] Status check_ids() const {
    Index first = -1;
    Index found = 0;
    Index count = 0;
    const char* input = nullptr;
    const auto check = [&](Index id, Index row, const char* of_input) {
      if (0 <= id && id < shard.vocab_size) return;
      if (++count > 1) return;
      first = row;
      found = id;
      input = of_input;
    };
    for (Index r = 0; r < map.rows; ++r) {
      const Index place = map.target_place(r);
      if (place >= 0) check(map.ids.template get<Index>(place), place, map.packing == nullptr ? "targets" : "input_ids");
      if (!wants_extras(r)) continue;
      for (Index k = 0; k < gathered; ++k) check(gathered_id(r, k), map.global_row(r), "gathered ids");
    }
    if (count == 0) return {};
    return Status(
        UsageError({kName, std::string(input) + " in [0, " + std::to_string(shard.vocab_size) + ")",
                    std::string(input) + " " + std::to_string(found),
                    "rows without a target hold ignore_index, " + std::to_string(options.ignore_index), first, count}));
  }

  template <class C>
  void take_statistics(C& c, Block<Slot> slots, Block<double> gathered_logits) const {
    using R = real_of<C>;
    const Values<R> z = c.in(0);
    const auto keep = c.saved(C::real, 0);
    c.pool().for_ranges(map.rows, [&](Index begin, Index end, int) {
      for (Index r = begin; r < end; ++r) {
        const Index place = map.target_place(r);
        const bool extras = wants_extras(r);
        slots(r) = {};
        for (Index k = 0; k < gathered; ++k) gathered_logits(r, k) = 0;
        if (place < 0 && !extras) continue;
        const LocalRow row = local_row(z, r, shard, options.temperature);
        slots(r).stats = row.stats;
        keep(r, 0) = static_cast<R>(row.max);
        const auto owned = [&](Index id) {
          return shard.holds(id) ? z.view().template get<double>(r, id - shard.begin) / options.temperature : 0.0;
        };
        if (place >= 0) slots(r).target = owned(map.ids.template get<Index>(place));
        for (Index k = 0; k < gathered && extras; ++k) gathered_logits(r, k) = owned(gathered_id(r, k));
      }
    });
  }

  template <class C>
  void write_outputs(C& c, Index r, const Slot& slot, Block<double> gathered_logits) const {
    using R = real_of<C>;
    const bool target = map.target_place(r) >= 0;
    const bool extras = wants_extras(r);
    const RowStats& row = slot.stats;
    const RowFault fault = target || extras ? fault_of(row) : RowFault::not_read;
    c.saved(of<RowFault>, 1)(r) = fault;
    const auto keep = c.saved(C::real, 0);
    const bool sound = fault == RowFault::none;
    // The largest logit as stored: kept from the first pass where it is this shard's. Where it is another's, its quotient by
    // the temperature brings it back: exactly in fp32, to an ulp in fp64.
    if (!sound) {
      keep(r, 0) = 0;
    } else if (static_cast<double>(keep(r, 0)) / options.temperature != row.m) {
      keep(r, 0) = static_cast<R>(row.m * options.temperature);
    }
    keep(r, 1) = sound ? static_cast<R>(log_sum(row)) : R(0);
    keep(r, 2) = sound ? static_cast<R>(mean_below_max(row)) : R(0);
    const auto value = [&](bool asked, double of_sound_row) {
      if (!asked) return 0.0;
      return sound ? of_sound_row : std::numeric_limits<double>::quiet_NaN();
    };
    c.out(0).write(r, value(target, log_prob(row, slot.target)));
    if (options.entropy) c.out(entropy_output()).write(r, value(extras, losstape::entropy(row)));
    for (Index k = 0; k < gathered; ++k) {
      c.out(gathered_output()).write(r, k, value(extras, log_prob(row, gathered_logits(r, k))));
    }
    if (options.lse) c.out(lse_output()).write(r, value(extras, row.m + log_sum(row)));
  }

  // A row's adjoints, as the row form's coefficients; `used` is false where all of them are exactly 0.
  struct RowAdjoints {
    double target = 0;
    double entropy = 0;
    double lse = 0;
    double points = 0;  // target and gathered together
    bool used = false;
  };
  template <class C>
  [[nodiscard]] RowAdjoints adjoints(const C& c, Index r) const {
    RowAdjoints of_row;
    const auto read = [&](std::size_t output, Index k = 0) {
      const auto d = c.dout(output);
      return d ? static_cast<double>(d(r, k)) : 0.0;
    };
    of_row.target = map.target_place(r) >= 0 ? read(0) : 0.0;
    of_row.points = of_row.target;
    of_row.used = of_row.target != 0;
    if (!wants_extras(r)) return of_row;
    if (options.entropy) of_row.entropy = read(entropy_output());
    if (options.lse) of_row.lse = read(lse_output());
    for (Index k = 0; k < gathered; ++k) {
      const double g = read(gathered_output(), k);
      of_row.points += g;
      of_row.used = of_row.used || g != 0;
    }
    of_row.used = of_row.used || of_row.entropy != 0 || of_row.lse != 0;
    return of_row;
  }

  // Before anything is written: no row without a distribution has an adjoint, and all adjoints are finite.
  template <class C>
  void check_adjoints(const C& c) const {
    if (c.non_finite() == NonFinite::propagate) return;
    const auto faults = c.saved(of<RowFault>, 1);
    Index first = -1;
    Index count = 0;
    for (Index r = 0; r < map.rows; ++r) {
      const RowAdjoints of_row = adjoints(c, r);
      const bool finite = std::isfinite(of_row.points) && std::isfinite(of_row.entropy) && std::isfinite(of_row.lse);
      if (!of_row.used || (faults(r) == RowFault::none && finite)) continue;
      if (count++ == 0) first = r;
    }
    if (count == 0) return;
    const RowFault fault = faults(first);
    throw UsageError({kName, "rows with a distribution and finite adjoints where the loss needs them",
                      fault == RowFault::none ? "an adjoint that is not finite" : describe(fault),
                      "mask the row out, or record with NonFinite::propagate", first, count});
  }

  template <class C>
  void write_gradient(const C& c, const GradSlice<real_of<C>>& slice, Index r, std::span<PointGradient> points) const {
    const RowAdjoints of_row = r < map.rows ? adjoints(c, r) : RowAdjoints{};
    if (!of_row.used) return slice.zero_row(r);
    const RowFault fault = c.saved(of<RowFault>, 1)(r);
    const auto keep = c.saved(C::real, 0);
    RowGradient row;
    row.max = fault == RowFault::none ? static_cast<double>(keep(r, 0)) : std::numeric_limits<double>::quiet_NaN();
    row.log1p_s = keep(r, 1);
    row.mean_u = keep(r, 2);
    row.a = of_row.lse - of_row.points;
    row.h = of_row.entropy;
    row.temperature = options.temperature;
    write_softmax_row(slice, c.in(0), r, shard, row, points.first(collect_points(c, r, of_row, points)));
  }

  // This shard's columns with an adjoint of their own, each once; returns how many.
  template <class C>
  std::size_t collect_points(const C& c, Index r, const RowAdjoints& of_row, std::span<PointGradient> points) const {
    std::size_t count = 0;
    const auto add = [&](Index id, double g) {
      if (g != 0 && shard.holds(id)) points[count++] = {id - shard.begin, g, 0};
    };
    if (of_row.target != 0) add(map.ids.template get<Index>(map.target_place(r)), of_row.target);
    if (gathered == 0 || !wants_extras(r)) return count;
    const auto d = c.dout(gathered_output());
    for (Index k = 0; k < gathered && d; ++k) add(gathered_id(r, k), static_cast<double>(d(r, k)));
    // Repeated ids add up: sorted by column, equal neighbours merge.
    std::sort(points.begin(), points.begin() + static_cast<std::ptrdiff_t>(count),
              [](const PointGradient& a, const PointGradient& b) { return a.column < b.column; });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (kept > 0 && points[kept - 1].column == points[i].column) {
        points[kept - 1].adjoint += points[i].adjoint;
      } else {
        points[kept++] = points[i];
      }
    }
    return kept;
  }
};

std::string shape_text(const View& view) {
  return "[" + std::to_string(view.rows) + ", " + std::to_string(view.cols) + "] of " + name(view.dtype);
}

bool is_index(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

// Checks of this rank's arguments; a rank of several tells its peers in the join instead of leaving them there.
void check_arguments(const View& z, const RowMap& map, const VocabShard& shard, const VocabStatsOptions& options) {
  check_logits(z, shard, kName);
  const Index pack_rows = map.packing == nullptr ? map.rows : map.packing->tokens();
  if (z.rows < map.rows) {
    throw UsageError({kName, "logits for each of the pack's " + std::to_string(map.rows) + " rows",
                      std::to_string(z.rows) + " rows", "rows follow cu_seqlens_padded"});
  }
  const char* ids = map.packing == nullptr ? "targets" : "input_ids";
  if (!is_index(map.ids.dtype) || map.ids.cols != 1 || map.ids.rows < pack_rows ||
      (map.packing == nullptr && map.ids.rows != pack_rows)) {
    throw UsageError(
        {kName, std::string(ids) + " [" + std::to_string(pack_rows) + ", 1] of int32 or int64", shape_text(map.ids)});
  }
  if (!(options.temperature > 0) || !std::isfinite(options.temperature)) {
    throw UsageError({kName, "a temperature that is finite and above 0", std::to_string(options.temperature)});
  }
  if (options.gathered.cols > 0 && (!is_index(options.gathered.dtype) || options.gathered.rows < pack_rows)) {
    throw UsageError(
        {kName, "gathered ids [" + std::to_string(pack_rows) + ", K] of int32 or int64", shape_text(options.gathered)});
  }
  if (!options.rows.empty() && (options.rows.cols != 1 || options.rows.rows < pack_rows)) {
    throw UsageError({kName, "a row mask [" + std::to_string(pack_rows) + ", 1]", shape_text(options.rows)});
  }
  if (options.chunk_rows < 0) {
    throw UsageError({kName, "chunk_rows of at least 0", std::to_string(options.chunk_rows)});
  }
}

template <class R>
BasicVocabStats<R> record(BasicVar<R> z, const RowMap& map, const VocabShard& shard, const VocabStatsOptions& options) {
  (void)z.rows();  // an empty Var has its own error
  BasicTape<R>& tape = *z.tape;
  Status status;
  try {
    check_arguments(tape.value(z), map, shard, options);
  } catch (const Error& error) {
    if (shard.group.size() == 1) throw;
    status = Status(error);
  }
  agree_on_layout(shard);
  const Index K = options.gathered.cols;
  Outputs outputs{{map.rows, 1}};
  if (options.entropy) outputs.add({map.rows, 1});
  if (K > 0) outputs.add({map.rows, K});
  if (options.lse) outputs.add({map.rows, 1});
  const VocabStatsNode node{map, shard, options, K, status};
  const std::size_t at_gathered = node.gathered_output();
  const std::size_t at_lse = node.lse_output();
  const VarList<R> out = tape.record(node, {z}, outputs);
  using Var = BasicVar<R>;
  return {out[0], options.entropy ? out[1] : Var::not_asked_for("entropy"),
          K > 0 ? out[at_gathered] : Var::not_asked_for("gathered"), options.lse ? out[at_lse] : Var::not_asked_for("lse")};
}

}  // namespace

template <class R>
BasicVocabStats<R> vocab_stats(BasicVar<R> z, const Packing& packing, const View& input_ids, const VocabShard& shard,
                               const VocabStatsOptions& options) {
  return record(z, {&packing, packing.version(), input_ids, packing.rows(), options.ignore_index}, shard, options);
}

template <class R>
BasicVocabStats<R> vocab_stats(BasicVar<R> z, const View& targets, const VocabShard& shard,
                               const VocabStatsOptions& options) {
  return record(z, {nullptr, 0, targets, z.rows(), options.ignore_index}, shard, options);
}

template BasicVocabStats<float> vocab_stats(BasicVar<float>, const Packing&, const View&, const VocabShard&,
                                            const VocabStatsOptions&);
template BasicVocabStats<double> vocab_stats(BasicVar<double>, const Packing&, const View&, const VocabShard&,
                                             const VocabStatsOptions&);
template BasicVocabStats<float> vocab_stats(BasicVar<float>, const View&, const VocabShard&, const VocabStatsOptions&);
template BasicVocabStats<double> vocab_stats(BasicVar<double>, const View&, const VocabShard&, const VocabStatsOptions&);

}  // namespace losstape
