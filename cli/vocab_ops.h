// SPDX-License-Identifier: Apache-2.0
// The golden kind vocab_ops: every output of the vocabulary node, and its gradient for upstreams that the case gives.
#pragma once

#include "cli/compare.h"
#include "cli/recorded_batch.h"
#include "cli/run_options.h"
#include "cli/witness.h"
#include "engine/parallel.h"

namespace losstape::cli {

// Evaluates the case over thread ranks and compares what the file expects: each output on every rank; the gradient for the
// upstream of each output alone, and for all of them in one pass. A case that must be refused is not compared.
// Errors: whatever a rank throws; `witness` has what each of them threw.
void check_vocab_ops(const CaseFile& file, const RunOptions& run, Pool& pool, Witness& witness, Comparison& comparison);

}  // namespace losstape::cli
