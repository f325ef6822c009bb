// SPDX-License-Identifier: Apache-2.0
// The graph of the negative log-likelihood.
#include "ops/losses/nll.h"

#include <array>

#include "ops/losses/columns.h"
#include "ops/losses/nll_functor.h"
#include "ops/token_map.h"

namespace losstape {

template <class R>
BasicLossResult<R> nll_loss(BasicVar<R> logprob, const Packing& packing, const LossColumns& columns, const Counts& counts) {
  const detail::ColumnReader<R> read(logprob, packing, "nll_loss");
  const std::array<ReducedColumn<R>, 1> token{{{token_map(NllFunctor{}, logprob), Per::tokens}}};
  const VarList<R> scalars = masked_reduce<R>(token, read.tokens(columns.token_mask, "token_mask"),
                                              read.samples(columns.sample_mask), packing, counts);
  BasicLossResult<R> result;
  result.loss = scalars[0];
  result.add("loss", scalars[0], Per::tokens);
  result.add("num_unmasked_tokens", scalars[1], Per::none);
  result.add("num_valid_samples", scalars[2], Per::none);
  return result;
}

template BasicLossResult<float> nll_loss(BasicVar<float>, const Packing&, const LossColumns&, const Counts&);
template BasicLossResult<double> nll_loss(BasicVar<double>, const Packing&, const LossColumns&, const Counts&);

}  // namespace losstape
