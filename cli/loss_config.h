// SPDX-License-Identifier: Apache-2.0
// Which loss: the names of kinds and presets, and the peers' configuration keys as this library's options.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cli/json.h"
#include "engine/tape.h"
#include "ops/losses/loss_result.h"
#include "ops/losses/policy_functor.h"
#include "ops/packing.h"

namespace losstape::cli {

// Something that is known, and not in this version: a kind, or a configuration.
class Unsupported : public std::runtime_error {
  using runtime_error::runtime_error;
};

enum class LossKind : unsigned char { clipped_policy_gradient, nll };

// The loss of a run, with its options.
struct LossChoice {
  LossKind kind = LossKind::clipped_policy_gradient;
  PolicyLossOptions policy{};  // of the clipped policy gradient
};

[[nodiscard]] const char* name(LossKind kind);
// In words for people: "clip 0.2 / 0.28, mean over tokens".
[[nodiscard]] std::string describe(const LossChoice& choice);

// The kind of that name, with or without packed_. Errors: Unsupported for any other.
[[nodiscard]] LossKind loss_kind(std::string_view kind);

// The loss and options that a name of --loss stands for: a kind with the peers' defaults, or a preset.
// Errors: Unsupported for one of a later version, UsageError for others.
[[nodiscard]] LossChoice named_loss(const std::string& name);

// Sets what `config` has on top of `choice`: the keys of the golden cases, null switching an option off.
// Errors: DataError, in the name of `source`, for unknown keys (with the nearest known one) and values that have no meaning;
// Unsupported for a known key whose value needs what this version does not have.
[[nodiscard]] LossChoice configured(LossChoice choice, const Json& config, const std::string& source);

// Records the loss of a column of log-probs.
template <class R>
[[nodiscard]] BasicLossResult<R> record_loss(const LossChoice& choice, BasicVar<R> logprob, const Packing& packing,
                                             const LossColumns& columns, const Counts& counts);

}  // namespace losstape::cli
