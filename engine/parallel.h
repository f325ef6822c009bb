// SPDX-License-Identifier: Apache-2.0
// A small pool of threads with a static partition: which thread does which rows depends on the counts alone.
#pragma once

#include <memory>
#include <type_traits>

#include "engine/dtype.h"

namespace losstape {

// Runs loops over rows on a fixed set of threads. A region allocates nothing; an exception in it reaches the caller (the
// one of the lowest range, where several throw). A pool may be shared by tapes on different threads: their regions take
// turns. A region started inside a region runs on the thread that it finds itself on.
class Pool {
 public:
  // threads ≥ 1, the caller's own among them; 0 takes one per hardware thread. Errors: UsageError below 0 or above 1024.
  explicit Pool(int threads);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  Pool(Pool&&) = delete;
  Pool& operator=(Pool&&) = delete;
  ~Pool();

  [[nodiscard]] int threads() const;

  // Calls f(begin, end, thread) for contiguous ranges that tile [0, count) in order; ranges may be empty and are skipped.
  template <class F>
  void for_ranges(Index count, F&& f) {
    using Body = std::remove_reference_t<F>;
    run(
        count,
        [](const void* body, Index begin, Index end, int thread) {
          (*static_cast<Body*>(const_cast<void*>(body)))(begin, end, thread);
        },
        std::addressof(f));
  }

 private:
  using Range = void (*)(const void* body, Index begin, Index end, int thread);
  struct State;

  void run(Index count, Range range, const void* body);

  std::unique_ptr<State> state_;
};

}  // namespace losstape
