// SPDX-License-Identifier: Apache-2.0
// The marked NaN: memory that was filled with it and still holds it was never written.
#pragma once

#include "engine/dtype.h"
#include "engine/view.h"

namespace losstape::detail {

// A quiet NaN with a payload that no arithmetic makes. Real NaNs are told apart from it bit by bit.
void fill_with_marks(const MutableView& memory);

// The first row that still holds a mark, or −1.
[[nodiscard]] Index first_marked_row(const View& memory);

// Fills with plain NaN: a slice whose gradient failed must not read as one.
void fill_with_nan(const MutableView& memory);

// Fills with exact zeros.
void fill_with_zeros(const MutableView& memory);

}  // namespace losstape::detail
