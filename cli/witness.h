// SPDX-License-Identifier: Apache-2.0
// What became of a run on each rank, where a case expects to be refused.
#pragma once

#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace losstape::cli {

// Ranks write to places of their own, so they may do so at once.
class Witness {
 public:
  struct Rank {
    std::string message;  // empty where the rank refused nothing
    bool wrote = false;   // whether its slice was touched by then
    bool finished = false;
  };

  explicit Witness(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  [[nodiscard]] const std::vector<Rank>& ranks() const { return ranks_; }

  // Runs a rank's part, and keeps what it throws on its way to the others.
  template <class Body, class Slice>
  void watch(int rank, const Slice& slice, Body&& body) {
    Rank& of_rank = ranks_[static_cast<std::size_t>(rank)];
    try {
      body();
      of_rank.finished = true;
    } catch (const std::exception& error) {
      of_rank.message = error.what();
      of_rank.wrote = !slice.untouched();
      throw;
    }
  }

 private:
  std::vector<Rank> ranks_;
};

}  // namespace losstape::cli
