// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known word that is closest to one that is not known.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace losstape::cli {

// " (did you mean X?)" where a known word is a few letters away, else nothing: the end of a message.
[[nodiscard]] std::string did_you_mean(std::string_view word, std::span<const std::string> known);

// The words as a list: a, b, c.
[[nodiscard]] std::string listed(std::span<const std::string> words);

}  // namespace losstape::cli
