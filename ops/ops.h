// SPDX-License-Identifier: Apache-2.0
// Every operation and loss.
#pragma once

#include "ops/losses/nll.h"
#include "ops/losses/policy_loss.h"
#include "ops/masked_reduce.h"
#include "ops/packing.h"
#include "ops/reference.h"
#include "ops/sequence.h"
#include "ops/token_map.h"
#include "ops/vocab_kernels.h"
#include "ops/vocab_stats.h"
