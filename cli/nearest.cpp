// SPDX-License-Identifier: Apache-2.0
// Edit distance over a short list of words.
#include "cli/nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace losstape::cli {
namespace {

// Letters to insert, delete or replace to make one word the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string did_you_mean(std::string_view word, std::span<const std::string> known) {
  constexpr std::size_t kLongest = 64;  // a longer word is no slip of the finger
  const std::string* best = nullptr;
  std::size_t least = 2 * std::max<std::size_t>(2, word.size() / 3) + 2;
  for (const std::string& candidate : known) {
    if (word.size() > kLongest) break;
    // A word that was begun is closer than its length says, --tensor for --tensor-parallel; the shortest one is closest.
    const bool begun = word.size() > 3 && candidate.starts_with(word);
    const std::size_t letters = distance(word, candidate);
    const std::size_t far = begun ? std::min<std::size_t>(letters, 3) : 2 * letters;
    if (far >= least) continue;
    least = far;
    best = &candidate;
  }
  return best == nullptr ? "" : " (did you mean " + *best + "?)";
}

std::string listed(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace losstape::cli
