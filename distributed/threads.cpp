// SPDX-License-Identifier: Apache-2.0
// The thread ranks' meeting place: parts land in memory of the group, so that a rank that leaves takes nothing with it.
#include "distributed/threads.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace losstape::threads {
namespace {

// Why ranks meet. Those that come for different things are told so: none may take another's meeting for its own.
struct Occasion {
  std::string_view operation;
  std::string_view phase;
  std::size_t bytes = 0;

  bool operator==(const Occasion&) const = default;
  [[nodiscard]] std::string text() const {
    std::string words(operation);
    if (bytes > 0) words += " of " + std::to_string(bytes) + " bytes";
    return words.append(phase);
  }
};

// Shared by the ranks of one group.
struct Meeting {
  Meeting(int ranks, std::chrono::milliseconds limit)
      : size(ranks), deadline(limit), parts(static_cast<std::size_t>(ranks)), here(static_cast<std::size_t>(ranks)) {}

  const int size;
  const std::chrono::milliseconds deadline;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<std::byte>> parts;  // what each rank gave; a rank writes its own between two meetings
  std::vector<char> here;                     // ranks that arrived at the present meeting
  int arrived = 0;
  Occasion occasion;  // of the present meeting, as the first to arrive said
  std::uint64_t meetings = 0;
  std::optional<ErrorParts> broken;  // the first cause
  std::map<std::pair<std::uint64_t, int>, std::shared_ptr<Meeting>> children;

  void break_with(const ErrorParts& cause) {
    const std::scoped_lock lock(mutex);
    break_locked(cause);
  }
  void break_locked(const ErrorParts& cause) {
    if (!broken) broken = cause;
    changed.notify_all();
  }
  void expect_whole() {
    const std::scoped_lock lock(mutex);
    if (broken) throw CommError(*broken);
  }
  // Returns when every rank has arrived; throws the first cause when the group is broken, or breaks it at the deadline.
  void meet(int rank, const Occasion& wanted) {
    std::unique_lock lock(mutex);
    if (broken) throw CommError(*broken);
    if (arrived == 0) occasion = wanted;
    if (occasion != wanted) {
      break_locked({std::string(wanted.operation), "every rank in the same collective",
                    "rank " + std::to_string(rank) + " in " + wanted.text() + " while others are in " + occasion.text(),
                    "all ranks record the same nodes, of the same rows and options, in the same order"});
      throw CommError(*broken);
    }
    const std::uint64_t mine = meetings;
    here[static_cast<std::size_t>(rank)] = 1;
    if (++arrived == size) {
      arrived = 0;
      std::fill(here.begin(), here.end(), char{0});
      ++meetings;
      changed.notify_all();
      return;
    }
    const bool in_time = changed.wait_for(lock, deadline, [&] { return meetings != mine || broken; });
    if (meetings != mine) return;
    if (!in_time) {
      std::string missing;
      for (int r = 0; r < size; ++r) {
        if (here[static_cast<std::size_t>(r)] == 0) missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(r);
      }
      break_locked({std::string(wanted.operation), "every rank within " + std::to_string(deadline.count()) + " ms",
                    missing + " did not arrive", "all ranks call the same collectives in the same order"});
    }
    throw CommError(*broken);
  }
};

class ThreadsCommunicator final : public Communicator {
 public:
  ThreadsCommunicator(std::shared_ptr<Meeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(rank), exceptions_(std::uncaught_exceptions()) {}
  ThreadsCommunicator(const ThreadsCommunicator&) = delete;
  ThreadsCommunicator& operator=(const ThreadsCommunicator&) = delete;
  ~ThreadsCommunicator() override {
    if (std::uncaught_exceptions() <= exceptions_) return;
    meeting_->break_with({"threads", "every rank to stay", "rank " + std::to_string(rank_) + " left with an exception"});
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return meeting_->size; }
  [[nodiscard]] std::chrono::milliseconds deadline() const override { return meeting_->deadline; }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Traffic /*traffic*/) override {
    check_room(mine.size(), all.size(), size());
    meeting_->expect_whole();  // in a broken group a peer may still be reading what this rank gave before
    std::vector<std::vector<std::byte>>& parts = meeting_->parts;
    parts[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    meeting_->meet(rank_, {"all_gather", "", mine.size()});
    for (int r = 0; r < size(); ++r) {
      const std::vector<std::byte>& part = parts[static_cast<std::size_t>(r)];
      std::copy(part.begin(), part.end(),
                all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(r) * mine.size()));
    }
    meeting_->meet(rank_, {"all_gather", ", read", mine.size()});
  }

  void barrier() override { meeting_->meet(rank_, {"barrier", "", 0}); }

  void abort(const Error& cause) override { meeting_->break_with(cause.parts()); }

  [[nodiscard]] std::unique_ptr<Communicator> split(int colour, int key) override {
    struct Wish {
      int colour, key, rank;
    };
    std::vector<Wish> wishes(static_cast<std::size_t>(size()));
    const Wish mine{colour, key, rank_};
    all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(wishes)), Traffic::handshake);
    std::erase_if(wishes, [&](const Wish& wish) { return wish.colour != colour; });
    std::sort(wishes.begin(), wishes.end(),
              [](const Wish& a, const Wish& b) { return a.key != b.key ? a.key < b.key : a.rank < b.rank; });
    const auto place = std::find_if(wishes.begin(), wishes.end(), [&](const Wish& wish) { return wish.rank == rank_; });
    std::shared_ptr<Meeting> part;
    {
      const std::scoped_lock lock(meeting_->mutex);
      std::shared_ptr<Meeting>& entry = meeting_->children[{splits_, colour}];
      if (!entry) entry = std::make_shared<Meeting>(static_cast<int>(wishes.size()), meeting_->deadline);
      part = entry;
    }
    ++splits_;
    return std::make_unique<ThreadsCommunicator>(part, static_cast<int>(place - wishes.begin()));
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  int rank_;
  int exceptions_;
  std::uint64_t splits_ = 0;
};

}  // namespace

namespace detail {

void check_options(int ranks, const RunOptions& options) {
  if (ranks < 1 || ranks > 256) {
    throw UsageError({"threads::run", "between 1 and 256 ranks", std::to_string(ranks)});
  }
  if (options.deadline < std::chrono::milliseconds(1) || options.deadline > std::chrono::hours(24 * 366)) {
    throw UsageError(
        {"threads::run", "a deadline between 1 ms and a year", std::to_string(options.deadline.count()) + " ms"});
  }
}

void run_ranks(int ranks, const RunOptions& options, const std::function<void(Communicator&)>& body) {
  const auto meeting = std::make_shared<Meeting>(ranks, options.deadline);
  std::mutex mutex;
  std::exception_ptr first;        // of the ranks' own making
  std::exception_ptr consequence;  // a CommError: what a failure looks like to the peers
  // Kept before the peers are woken, so that what they throw on waking comes second.
  const auto keep = [&](std::exception_ptr& which) {
    const std::scoped_lock lock(mutex);
    if (!which) which = std::current_exception();
  };
  const auto one_rank = [&](int rank) {
    ThreadsCommunicator communicator(meeting, rank);  // outlives the catch below, whose words say more than its own
    try {
      body(communicator);
    } catch (const std::exception& error) {
      keep(dynamic_cast<const CommError*>(&error) == nullptr ? first : consequence);
      meeting->break_with(
          {"threads::run", "every rank to finish", "rank " + std::to_string(rank) + " failed: " + error.what()});
    } catch (...) {
      keep(first);
      meeting->break_with({"threads::run", "every rank to finish", "rank " + std::to_string(rank) + " failed"});
    }
  };
  std::vector<std::thread> others;
  try {
    for (int rank = 1; rank < ranks; ++rank) others.emplace_back(one_rank, rank);
    one_rank(0);
  } catch (...) {  // the system has no more threads
    keep(first);
    meeting->break_with({"threads::run", "a thread for every rank", "fewer"});
  }
  for (std::thread& thread : others) thread.join();
  if (first) std::rethrow_exception(first);
  if (consequence) std::rethrow_exception(consequence);
}

}  // namespace detail
}  // namespace losstape::threads
