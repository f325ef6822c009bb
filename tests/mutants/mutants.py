# SPDX-License-Identifier: Apache-2.0
"""The faults that the tests must notice: a name that says what is wrong, a file, and a change."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str


MUTANTS = [
    # ---- engine
    Mutant("zero rows are not written", "engine/grad_slice.h", "if (beta_ != Beta::store || !wanted_ || memory_.empty()) return;", "return;"),
    Mutant("a Var named twice loses one gradient", "engine/tape.cpp", "if (times > 1 && !in.written) {", "if (times > 99) {"),
    Mutant("a second node overwrites the first's gradient", "engine/record.h", "if (written) return Beta::add;", ""),
    Mutant("accumulate overwrites", "engine/record.h",
           "if (kind == VarKind::input && grad == Grad::accumulate) return Beta::add;", ""),
    Mutant("zeroed is believed on a second backward", "engine/record.h", "&& backwards == 0 &&", "&&"),
    Mutant("a slice that no node wrote keeps its garbage", "engine/tape.cpp",
           "if (!input->written && input->beta() == Beta::store) detail::fill_with_zeros(input->slice);", ""),
    Mutant("a wanted gradient may be forgotten", "engine/tape.cpp", "if ((record.asked >> i & 1U) == 0) {", "if (false) {"),
    Mutant("a failed backward leaves half a gradient", "engine/tape.cpp", "detail::fill_with_nan(input->slice);", ""),
    Mutant("Vars of a cleared tape are followed", "engine/tape.cpp", "++generation_;", ""),
    Mutant("in-place logits have a second reader", "engine/tape.cpp",
           "for (const std::uint32_t input : record->inputs) vars_[input].consumed = true;", ""),
    Mutant("the checker does not freeze", "ops/dual.h", "return {a.base, a.base, false};", "return a;"),
    Mutant("kinks are not seen", "ops/token_map.h", "if (y[0].kink) c.kink();", ""),
    # ---- distributed
    Mutant("a peer's bad status is ignored", "distributed/communicator.cpp", "if (first.ok() && !theirs.status.ok()) {",
           "if (false) {"),
    Mutant("shards may leave a gap", "distributed/vocab_shard.cpp", "if (claim.begin > covered)", "if (false)"),
    # ---- packing
    Mutant("the last row of a sequence predicts the next one", "ops/packing.cpp",
           "return at.position + 1 < length(at.sequence) ? at.global + 1 : -1;",
           "return at.position < length(at.sequence) && at.global + 1 < tokens() ? at.global + 1 : -1;"),
    Mutant("padding rows count as real", "ops/packing.cpp", "return at.position < length(at.sequence);", "return true;"),
    Mutant("zigzag takes the wrong second piece", "ops/packing.cpp", "piece * (pieces - 2 - rank)", "piece * (pieces - 1 - rank)"),
    Mutant("columns are not moved to prediction rows", "ops/packing.h",
           "return target >= 0 ? column_.get<double>(target) : 0.0;",
           "return target >= 0 ? column_.get<double>(target - 1) : 0.0;"),
    Mutant("a packing may change in flight", "ops/packing.cpp", "if (version == version_) return;", "return;"),
    # ---- row statistics
    Mutant("a join loses the second maximum", "ops/row_stats.h", "high.s + (1 + low.s) * scale", "high.s + low.s * scale"),
    Mutant("a join does not shift u", "ops/row_stats.h", "(low.u + (1 + low.s) * d)", "low.u"),
    Mutant("the maximum counts in its own sum", "ops/vocab_kernels_cpu.cpp", "if (j == top) continue;", ""),
    Mutant("a guard swallows NaN among -inf", "ops/vocab_kernels_cpu.cpp",
           "if (nan) none.s = std::numeric_limits<double>::quiet_NaN();", ""),
    Mutant("tiles follow the shard, not the vocabulary", "ops/vocab_kernels_cpu.cpp",
           "(tile / kVocabTile + 1) * kVocabTile", "tile + kVocabTile"),
    Mutant("padding columns take probability", "distributed/vocab_shard.h",
           "const Index real_end = end < vocab_size ? end : vocab_size;", "const Index real_end = end;"),
    Mutant("an empty shard's identity is 0", "ops/row_stats.h",
           "double m = -std::numeric_limits<double>::infinity();", "double m = 0;"),
    # ---- row gradient
    Mutant("the gradient forgets the temperature", "ops/row_gradient.h", "* (d - mean_u)) * scale", "* (d - mean_u))"),
    Mutant("1 - p is formed by subtraction", "ops/row_gradient.h", "g * -std::expm1(log_p)", "g * (1 - p)"),
    Mutant("repeated ids overwrite", "ops/vocab_stats.cpp", "points[kept - 1].adjoint += points[i].adjoint;",
           "points[kept - 1].adjoint = points[i].adjoint;"),
    Mutant("the scaled maximum is saved", "ops/vocab_stats.cpp", "static_cast<R>(row.m * options.temperature)",
           "static_cast<R>(row.m)"),
    # ---- reductions and losses
    Mutant("spread does not sum over context ranks", "ops/sequence.cpp",
           "over.join(name, sums, c.workspace(of<std::byte>, 1));\n    for (Index b = 0; b < packing.sequences(); ++b) dx",
           "for (Index b = 0; b < packing.sequences(); ++b) dx"),
    Mutant("a masked element is multiplied, not selected", "ops/token_map.h", "g == 0 ? 0.0 : g *", "g *"),
    Mutant("dual clip for positive advantages too", "ops/losses/policy_functor.h", "select(advantage < T(0),", "select(true,"),
    Mutant("the KL weight has no gradient", "ops/losses/policy_functor.h",
           "options.kl_weight == KlWeight::on_policy ? generation : stop_gradient(logp)",
           "options.kl_weight == KlWeight::on_policy ? generation : logp"),
]
