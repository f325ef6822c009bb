// SPDX-License-Identifier: Apache-2.0
// The pool's threads: they sleep between regions, take their range when one starts, and report when it is done.
#include "engine/parallel.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/error.h"

namespace losstape {
namespace {

thread_local bool inside_region = false;

int checked(int threads) {
  if (threads < 0 || threads > 1024) {
    throw UsageError({"Pool", "threads between 0 (one per hardware thread) and 1024", std::to_string(threads)});
  }
  if (threads > 0) return threads;
  const unsigned hardware = std::thread::hardware_concurrency();
  return hardware == 0 ? 1 : static_cast<int>(hardware);
}

}  // namespace

struct Pool::State {
  explicit State(int size) : threads(size), errors(static_cast<std::size_t>(size)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {  // also of a pool for which the system had no more threads
    {
      const std::scoped_lock lock(mutex);
      stop = true;
    }
    started.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  const int threads;
  std::mutex turn;  // one region at a time
  std::mutex mutex;
  std::condition_variable started;
  std::condition_variable finished;
  std::uint64_t region = 0;
  int busy = 0;
  bool stop = false;
  Index count = 0;
  Range range = nullptr;
  const void* body = nullptr;
  std::vector<std::exception_ptr> errors;
  std::vector<std::thread> workers;

  void do_range(int thread) {
    const Index begin = share(thread);
    const Index end = share(thread + 1);
    if (begin == end) return;
    inside_region = true;
    try {
      range(body, begin, end, thread);
    } catch (...) {
      errors[static_cast<std::size_t>(thread)] = std::current_exception();
    }
    inside_region = false;
  }
  // First row of a thread's range: count · thread / threads, without overflowing for huge counts.
  [[nodiscard]] Index share(int thread) const { return count / threads * thread + count % threads * thread / threads; }
  void work(int thread) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      started.wait(lock, [&] { return stop || region != seen; });
      if (stop) return;
      seen = region;
      lock.unlock();
      do_range(thread);
      lock.lock();
      if (--busy == 0) finished.notify_one();
    }
  }
};

Pool::Pool(int threads) : state_(std::make_unique<State>(checked(threads))) {
  for (int thread = 1; thread < state_->threads; ++thread) {
    state_->workers.emplace_back([state = state_.get(), thread] { state->work(thread); });
  }
}

Pool::~Pool() = default;

int Pool::threads() const { return state_->threads; }

void Pool::run(Index count, Range range, const void* body) {
  if (count <= 0) return;
  State& s = *state_;
  if (s.threads == 1 || count == 1 || inside_region) return range(body, 0, count, 0);
  const std::scoped_lock turn(s.turn);
  {
    const std::scoped_lock lock(s.mutex);
    s.count = count;
    s.range = range;
    s.body = body;
    s.busy = s.threads - 1;
    ++s.region;
  }
  s.started.notify_all();
  s.do_range(0);
  {
    std::unique_lock lock(s.mutex);
    s.finished.wait(lock, [&] { return s.busy == 0; });
  }
  std::exception_ptr first;
  for (std::exception_ptr& error : s.errors) {
    if (error && !first) first = error;
    error = nullptr;
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace losstape
