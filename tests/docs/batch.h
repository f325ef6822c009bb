// SPDX-License-Identifier: Apache-2.0
// What the snippets of the documentation take as given: a small packed batch, its logits, and memory for the gradient.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "distributed/counting.h"
#include "distributed/threads.h"
#include "engine/eigen.h"
#include "engine/engine.h"
#include "ops/ops.h"

namespace batch {

inline constexpr losstape::Index tokens = 8;
inline constexpr losstape::Index vocab = 12;
inline const std::vector<std::int32_t> cu_seqlens{0, 3, 7};
inline const std::vector<std::int32_t> cu_seqlens_padded{0, 4, 8};
inline const std::vector<std::int32_t> input_ids{3, 1, 4, 0, 5, 9, 2, 6};
inline const std::vector<float> token_mask{0, 1, 1, 0, 0, 1, 1, 1};
inline const std::vector<float> advantages{0, 1, 1, 0, 0, -0.5F, -0.5F, -0.5F};
inline const std::vector<float> prev_logprobs{0, -2.0F, -3.0F, 0, 0, -2.2F, -2.9F, -2.3F};
inline const std::vector<float> reference_logprobs{0, -2.5F, -2.5F, 0, 0, -2.5F, -2.5F, -2.5F};

inline std::vector<float> made_logits() {
  std::vector<float> made(static_cast<std::size_t>(tokens * vocab));
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = std::sin(static_cast<float>(i));
  return made;
}
inline const std::vector<float> logits = made_logits();
inline std::vector<float> gradient(static_cast<std::size_t>(tokens* vocab));
inline const losstape::View logits_view(logits.data(), tokens, vocab);
inline const losstape::MutableView gradient_view(gradient.data(), tokens, vocab);

inline losstape::Packing made_packing() {
  losstape::Packing made;
  made.assign(cu_seqlens, cu_seqlens_padded);
  return made;
}
inline const losstape::Packing packing = made_packing();

}  // namespace batch
