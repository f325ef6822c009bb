// SPDX-License-Identifier: Apache-2.0
// Everything of the engine.
#pragma once

#include "engine/error.h"
#include "engine/gradcheck.h"
#include "engine/print.h"
#include "engine/tape.h"
