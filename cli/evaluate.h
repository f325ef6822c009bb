// SPDX-License-Identifier: Apache-2.0
// One batch, one loss, any number of thread ranks: the value, the gradient, and what they cost.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/buffers.h"
#include "cli/loss_config.h"
#include "cli/recorded_batch.h"
#include "cli/run_options.h"
#include "cli/witness.h"
#include "engine/parallel.h"
#include "engine/tape.h"

namespace losstape::cli {

struct EvaluateOptions {
  RunOptions run{};
  Pool* pool = nullptr;  // of all ranks
  Audit audit = Audit::off;
  bool timed = false;          // repeat the step, and report the median time
  bool keep_gradient = false;  // join the slices into one gradient
  Witness* witness = nullptr;
};

// Bytes of the rank that holds most.
struct HeldBytes {
  std::size_t logits = 0;
  std::size_t slices = 0;
  std::size_t saved = 0;
  std::size_t workspace = 0;
  std::size_t columns = 0;  // values, adjoints and records of the tape, beside what is saved
};

// Of one rank in one step; none in a group of one. The handshake of a new layout is not among them.
struct StepCollectives {
  int forward = 0;
  int backward = 0;
  std::size_t bytes = 0;
};

struct StepSeconds {
  double forward = 0;
  double backward = 0;
};

struct Evaluation {
  double loss = 0;
  std::vector<std::pair<std::string, double>> metrics;
  double gradient_norm = 0;  // over all ranks
  HeldBytes memory{};
  StepCollectives collectives{};
  StepSeconds seconds{};
  DType real = DType::f32;  // of the tape and its slices
  Matrix gradient{};        // [T, V], or [B·S, 1] of a padded batch, where it was kept
};

// Of a pack: vocab_stats over shards of its logits, then the loss. fp64 where the logits are f64 or become so, else fp32.
// Errors: whatever a rank throws; `witness` has what each of them threw.
[[nodiscard]] Evaluation evaluate_packed(const RecordedBatch& batch, const LossChoice& choice,
                                         const EvaluateOptions& options);

// Of a padded batch of log-probs: the loss alone, on one rank. fp64 unless `run.dtype` says another.
[[nodiscard]] Evaluation evaluate_padded(const RecordedBatch& batch, const LossChoice& choice,
                                         const EvaluateOptions& options);

// The real type in which a batch with these logits is computed.
[[nodiscard]] DType real_type(DType logits, std::optional<DType> rounded_to);

}  // namespace losstape::cli
