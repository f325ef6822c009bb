// SPDX-License-Identifier: Apache-2.0
// What a rank tells its peers in the header of a collective: that all is well, or the words of the error that it met.
#pragma once

#include <cstdint>

#include "engine/error.h"

namespace losstape {

// A rank with bad input takes part in the collective all the same; every rank then throws the same error, none waits for
// one that left. Fixed size and plain bytes: it travels in the header.
struct Status {
  enum class Kind : std::uint32_t { ok, usage, data, device, comm };

  Kind kind = Kind::ok;
  std::int32_t rank = -1;  // that reported it, filled in by the join
  std::int64_t row = -1;
  std::int64_t count = 0;
  char operation[40] = {};  // texts end in 0 and are cut to fit
  char expected[104] = {};
  char found[104] = {};
  char hint[104] = {};

  Status() = default;
  explicit Status(const Error& error);

  [[nodiscard]] bool ok() const { return kind == Kind::ok; }
  // Throws the error that it carries, naming the rank where a group has several. Does nothing when ok.
  void raise(int group_size) const;
};

}  // namespace losstape
