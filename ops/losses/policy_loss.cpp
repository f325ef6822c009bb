// SPDX-License-Identifier: Apache-2.0
// The graph of the clipped policy gradient.
#include "ops/losses/policy_loss.h"

#include <array>
#include <cmath>
#include <string>

#include "engine/error.h"
#include "ops/losses/columns.h"
#include "ops/token_map.h"

namespace losstape {
namespace {

constexpr const char* kName = "policy_loss";

void check(const PolicyLossOptions& o) {
  const auto refuse = [](const char* expected, double found) { throw UsageError({kName, expected, std::to_string(found)}); };
  if (!(o.clip_low >= 0)) refuse("clip_low of at least 0", o.clip_low);
  if (!(o.clip_high >= 0)) refuse("clip_high of at least 0", o.clip_high);
  if (o.dual_clip != 0 && !(o.dual_clip > 1)) refuse("dual_clip (ratio_clip_c) above 1, or 0 for none", o.dual_clip);
  if (!std::isfinite(o.kl_penalty)) refuse("a finite kl_penalty", o.kl_penalty);
  if (o.kl_clamps.bounds_input && !(o.kl_clamps.input >= 0)) refuse("a KL input clamp of at least 0", o.kl_clamps.input);
  if (o.kl_clamps.bounds_output && !(o.kl_clamps.output >= 0)) refuse("a KL output clamp of at least 0", o.kl_clamps.output);
}

}  // namespace

template <class R>
BasicLossResult<R> policy_loss(BasicVar<R> logprob, const Packing& packing, const LossColumns& columns,
                               const PolicyLossOptions& options, const Counts& counts) {
  check(options);
  const detail::ColumnReader<R> read(logprob, packing, kName);
  const BasicVar<R> advantages = read.tokens(columns.advantages, "advantages");
  const BasicVar<R> prev = read.tokens(columns.prev_logprobs, "prev_logprobs");
  const BasicVar<R> generation =
      columns.generation_logprobs.empty() ? prev : read.tokens(columns.generation_logprobs, "generation_logprobs");
  const BasicVar<R> reference =
      options.kl_penalty == 0 ? prev : read.tokens(columns.reference_logprobs, "reference_logprobs");

  const auto terms = token_map(PolicyFunctor{options}, logprob, advantages, prev, generation, reference);
  const Per mean = options.level == LossLevel::token ? Per::tokens : Per::sequences;
  struct Row {
    const char* name;
    PolicyTerm term;
    Per per;
  };
  const std::array<Row, 13> rows{{
      {"loss", PolicyTerm::loss, mean},
      {"probs_ratio", PolicyTerm::ratio, Per::tokens},
      {"probs_ratio_clamped", PolicyTerm::ratio_clamped, Per::tokens},
      {"probs_ratio_min", PolicyTerm::ratio, Per::min},
      {"probs_ratio_max", PolicyTerm::ratio, Per::max},
      {"probs_ratio_clamped_min", PolicyTerm::ratio_clamped, Per::min},
      {"probs_ratio_clamped_max", PolicyTerm::ratio_clamped, Per::max},
      {"kl_penalty", PolicyTerm::kl, mean},
      {"token_mult_prob_error", PolicyTerm::mult_prob_error, Per::tokens},
      {"gen_kl_error", PolicyTerm::generation_kl, Per::tokens},
      {"policy_kl_error", PolicyTerm::policy_kl, Per::tokens},
      {"js_divergence_error", PolicyTerm::js_divergence, Per::tokens},
      {"sampling_importance_ratio", PolicyTerm::behaviour_weight, Per::tokens},
  }};
  std::array<ReducedColumn<R>, rows.size() + 1> reduced;
  for (std::size_t k = 0; k < rows.size(); ++k) reduced[k] = {terms[static_cast<std::size_t>(rows[k].term)], rows[k].per};
  reduced[rows.size()] = {terms[static_cast<std::size_t>(PolicyTerm::surprise)], Per::tokens};
  const VarList<R> scalars = masked_reduce<R>(reduced, read.tokens(columns.token_mask, "token_mask"),
                                              read.samples(columns.sample_mask), packing, counts);

  BasicLossResult<R> result;
  result.loss = scalars[0];
  for (std::size_t k = 0; k < rows.size(); ++k) result.add(rows[k].name, scalars[k], rows[k].per);
  result.add("approx_entropy", scalars[rows.size()], Per::tokens);
  result.add("num_valid_samples", scalars[rows.size() + 2], Per::none);
  result.add("positive_nll_loss", read.zero(), Per::none);
  return result;
}

template BasicLossResult<float> policy_loss(BasicVar<float>, const Packing&, const LossColumns&, const PolicyLossOptions&,
                                            const Counts&);
template BasicLossResult<double> policy_loss(BasicVar<double>, const Packing&, const LossColumns&, const PolicyLossOptions&,
                                             const Counts&);

}  // namespace losstape
