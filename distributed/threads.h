// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: the embedded default for tests, examples and the CLI.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "distributed/communicator.h"

namespace losstape::threads {

struct RunOptions {
  std::chrono::milliseconds deadline{60'000};  // of each collective; from 1 ms to a year
};

namespace detail {
void check_options(int ranks, const RunOptions& options);
void run_ranks(int ranks, const RunOptions& options, const std::function<void(Communicator&)>& body);
}  // namespace detail

// Calls f(communicator) once a rank, each on a thread of its own, and returns their results in rank order (nothing for
// void). An exception that leaves f on one rank wakes its peers out of their collectives with a CommError that names the
// rank; run rethrows the first cause when all have returned. Errors: UsageError for ranks outside [1, 256] or a deadline out
// of range; whatever f throws.
template <class F>
auto run(int ranks, F&& f, const RunOptions& options = {}) {
  detail::check_options(ranks, options);
  using Result = std::invoke_result_t<F&, Communicator&>;
  if constexpr (std::is_void_v<Result>) {
    detail::run_ranks(ranks, options, [&](Communicator& communicator) { f(communicator); });
  } else {
    std::vector<std::optional<Result>> found(static_cast<std::size_t>(ranks));
    detail::run_ranks(ranks, options, [&](Communicator& communicator) {
      found[static_cast<std::size_t>(communicator.rank())].emplace(f(communicator));
    });
    std::vector<Result> results;
    results.reserve(found.size());
    for (std::optional<Result>& result : found) results.push_back(std::move(*result));
    return results;
  }
}

}  // namespace losstape::threads
