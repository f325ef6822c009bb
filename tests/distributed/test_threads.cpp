// SPDX-License-Identifier: Apache-2.0
// Ranks as threads: their collectives, and what each sees when one of them fails.
#include "distributed/threads.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/allocations.h"
#include "tests/support/refusal.h"

using namespace losstape;
using namespace losstape::testing;
using namespace std::chrono_literals;

namespace {

// Every rank's numbers, from every rank, by all_gather.
std::vector<int> gather(Communicator& communicator, const std::vector<int>& mine) {
  std::vector<int> all(mine.size() * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), Traffic::step);
  return all;
}

// What each rank's CommError says, where f on each rank catches what it meets. "none" where it met nothing.
std::vector<std::string> errors_of(int ranks, const threads::RunOptions& options,
                                   const std::function<void(Communicator&)>& f) {
  return threads::run(
      ranks,
      [&](Communicator& communicator) -> std::string {
        try {
          f(communicator);
        } catch (const CommError& error) {
          return error.what();
        }
        return "none";
      },
      options);
}

double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_SUITE("distributed/threads") {
  TEST_CASE("run gives each rank its number and returns their results in rank order") {
    for (const int ranks : {1, 2, 8}) {
      const auto found = threads::run(ranks, [](Communicator& c) { return 100 * c.size() + c.rank(); });
      REQUIRE(static_cast<int>(found.size()) == ranks);
      for (int r = 0; r < ranks; ++r) CHECK(found[static_cast<std::size_t>(r)] == 100 * ranks + r);
    }
    std::atomic<int> calls{0};
    threads::run(3, [&](Communicator&) { ++calls; });
    CHECK(calls == 3);
  }
  TEST_CASE("a result may be movable only, or a bool") {
    const auto pointers = threads::run(2, [](Communicator& c) { return std::make_unique<int>(c.rank()); });
    CHECK(*pointers[1] == 1);
    const std::vector<bool> even = threads::run(3, [](Communicator& c) { return c.rank() % 2 == 0; });
    CHECK(even == std::vector<bool>{true, false, true});
  }
  TEST_CASE("0 and 257 ranks, and more than memory has, are refused, and so is a deadline that is none") {
    const auto nothing = [](Communicator& c) { return c.rank(); };
    for (const int ranks : {-1, 0, 257, std::numeric_limits<int>::max()}) {
      check_says(refusal([&] { (void)threads::run(ranks, nothing); }), "threads::run: expected between 1 and 256 ranks");
    }
    for (const std::chrono::milliseconds deadline :
         {std::chrono::milliseconds(0), std::chrono::milliseconds(-5), std::chrono::milliseconds::max()}) {
      check_says(refusal([&] { (void)threads::run(2, nothing, {.deadline = deadline}); }),
                 "a deadline between 1 ms and a year");
    }
    CHECK(threads::run(256, nothing).back() == 255);
  }
  TEST_CASE("all_gather concatenates in rank order on every rank, many times, of sizes that change, nothing too") {
    const auto found = threads::run(4, [](Communicator& c) {
      bool right = true;
      for (int i = 0; i < 300; ++i) {
        const auto length = static_cast<std::size_t>(i % 5);
        const std::vector<int> all = gather(c, std::vector<int>(length, 10 * i + c.rank()));
        for (std::size_t k = 0; k < all.size(); ++k) right = right && all[k] == 10 * i + static_cast<int>(k / length);
      }
      return right;
    });
    for (const bool right : found) CHECK(right);
  }
  TEST_CASE("what a rank gives may stand where the gather will have it") {
    const auto found = threads::run(3, [](Communicator& c) {
      std::vector<int> all(6, -1);
      const std::span<int> own = std::span(all).subspan(static_cast<std::size_t>(2 * c.rank()), 2);
      own[0] = c.rank();
      own[1] = 10 * c.rank();
      c.all_gather(std::as_bytes(own), std::as_writable_bytes(std::span(all)), Traffic::step);
      return all;
    });
    for (const std::vector<int>& all : found) CHECK(all == std::vector<int>{0, 0, 1, 10, 2, 20});
  }
  TEST_CASE("room that is not as long as all parts is refused before anybody writes to it") {
    const auto parts = [](Communicator& c, std::size_t room) {
      const std::array<std::byte, 4> mine{};
      std::vector<std::byte> all(room);
      c.all_gather(mine, all, Traffic::step);
    };
    check_says(refusal([&] { threads::run(2, [&](Communicator& c) { parts(c, 7); }); }),
               "all_gather: expected room for 2 parts of 4 bytes, found 7 bytes");
    (void)refusal([&] { threads::run(2, [&](Communicator& c) { parts(c, 9); }); });
  }
  TEST_CASE("no rank leaves a barrier before all have come") {
    std::array<std::atomic<int>, 3> round{};
    const auto found = threads::run(3, [&](Communicator& c) {
      bool right = true;
      for (int i = 1; i <= 200; ++i) {
        round[static_cast<std::size_t>(c.rank())] = i;
        c.barrier();
        for (const auto& other : round) right = right && other >= i;
        c.barrier();
      }
      return right;
    });
    for (const bool right : found) CHECK(right);
  }
  TEST_CASE("all_reduce sums, and finds extrema, in rank order: the same bits on every rank") {
    const std::vector<double> mine{0.1, 1e16, -1, 3};
    const double sum = ((0.1 + 1e16) + -1) + 3;
    const auto found = threads::run(4, [&](Communicator& c) {
      const double x = mine[static_cast<std::size_t>(c.rank())];
      std::vector<double> pair{x, -x};
      c.all_reduce(pair, Reduce::sum);
      return std::vector<double>{c.all_reduce(x, Reduce::sum), c.all_reduce(x, Reduce::min), c.all_reduce(x, Reduce::max),
                                 pair[0], pair[1]};
    });
    for (const std::vector<double>& here : found) CHECK(here == std::vector<double>{sum, -1, 1e16, sum, -sum});
  }
  TEST_CASE("a NaN of any rank is the extremum, on every rank") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (int where = 0; where < 3; ++where) {
      const auto found = threads::run(3, [&](Communicator& c) {
        const double x = c.rank() == where ? nan : c.rank();
        return std::isnan(c.all_reduce(x, Reduce::min)) && std::isnan(c.all_reduce(x, Reduce::max));
      });
      for (const bool is_nan : found) CHECK(is_nan);
    }
  }
  TEST_CASE("split groups ranks by colour, in the order of key and then rank, and the parts work apart") {
    const auto found = threads::run(6, [](Communicator& c) {
      const auto half = c.split(c.rank() % 2, -c.rank());  // keys reverse the order
      std::vector<int> seen{half->rank(), half->size()};
      for (const int rank : gather(*half, {c.rank()})) seen.push_back(rank);
      const auto again = half->split(0, 0);  // equal keys: rank order
      seen.push_back(again->rank());
      const auto alone = c.split(c.rank(), 0);
      seen.push_back(alone->size());
      const auto whole = c.split(7, 0);
      seen.push_back(static_cast<int>(whole->all_reduce(1.0, Reduce::sum)));
      return seen;
    });
    for (int r = 0; r < 6; ++r) {
      const int place = 2 - r / 2;
      const int odd = r % 2;
      CHECK(found[static_cast<std::size_t>(r)] == std::vector<int>{place, 3, 4 + odd, 2 + odd, odd, place, 1, 6});
    }
  }
  TEST_CASE("a part lives on after the communicator that it was split from") {
    const auto found = threads::run(4, [](Communicator& c) {
      std::unique_ptr<Communicator> part = c.split(0, 0);
      part = part->split(c.rank() / 2, 0);
      return part->all_reduce(c.rank(), Reduce::sum);
    });
    CHECK(found == std::vector<double>{1, 1, 5, 5});
  }
  TEST_CASE("gathering in steady state allocates nothing") {
    const auto counts = threads::run(2, [](Communicator& c) {
      const std::vector<int> mine(100, c.rank());
      std::vector<int> all(200);
      const auto step = [&] {
        c.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), Traffic::step);
      };
      step();
      c.barrier();
      const std::size_t count = allocations_in([&] {
        for (int i = 0; i < 10; ++i) step();
        c.barrier();
      });
      c.barrier();
      return count;
    });
    CHECK(counts == std::vector<std::size_t>{0, 0});
  }
}

TEST_SUITE("distributed/threads faults") {
  TEST_CASE("a rank that never comes: the others learn within the deadline who is missing") {
    std::vector<std::string> words;
    const double seconds = seconds_of([&] {
      words = errors_of(4, {.deadline = 200ms}, [](Communicator& c) {
        if (c.rank() == 2) {
          std::this_thread::sleep_for(600ms);  // busy elsewhere
          return;
        }
        c.barrier();
      });
    });
    CHECK(seconds < 5);
    CHECK(words[2] == "none");
    for (const std::size_t rank : {0U, 1U, 3U}) {
      CHECK(words[rank] ==
            "barrier: expected every rank within 200 ms, found rank 2 did not arrive; "
            "all ranks call the same collectives in the same order");
    }
  }
  TEST_CASE("several missing ranks are all named") {
    const auto words = errors_of(4, {.deadline = 100ms}, [](Communicator& c) {
      if (c.rank() % 2 == 0) std::this_thread::sleep_for(400ms);
      if (c.rank() % 2 == 1) (void)gather(c, {1});
    });
    CHECK(contains(words[1], "rank 0, rank 2 did not arrive"));
    CHECK(words[3] == words[1]);
  }
  TEST_CASE("the first cause stays: whoever comes later gets it at once, in the same words") {
    const auto words = threads::run(3,
                                    [](Communicator& c) {
                                      std::string seen;
                                      if (c.rank() == 1) std::this_thread::sleep_for(500ms);
                                      for (int i = 0; i < 3; ++i) {
                                        try {
                                          c.barrier();
                                        } catch (const CommError& error) {
                                          seen += error.what();
                                          seen += "|";
                                        }
                                      }
                                      return seen;
                                    },
                                    {.deadline = 100ms});
    const std::string cause =
        "barrier: expected every rank within 100 ms, found rank 1 did not arrive; all ranks call the same collectives in "
        "the same order|";
    for (const std::string& seen : words) CHECK(seen == cause + cause + cause);
  }
  TEST_CASE(
      "different sizes, different calls and a different order break the group for all, in the same words, and nobody "
      "hangs") {
    const std::vector<std::function<void(Communicator&)>> disagreements{
        [](Communicator& c) { (void)gather(c, std::vector<int>(c.rank() == 1 ? 3 : 2)); },
        [](Communicator& c) {
          if (c.rank() == 1) {
            c.barrier();
          } else {
            (void)gather(c, {1});
          }
        },
        [](Communicator& c) {
          (void)gather(c, {1});
          if (c.rank() == 2) c.barrier();
          (void)gather(c, {1});  // of a size that fits what the others do: only the call itself can tell
          if (c.rank() != 2) c.barrier();
        },
        [](Communicator& c) {
          if (c.rank() == 0) {
            (void)c.split(0, 0);
          } else {
            (void)gather(c, {1});
          }
        },
    };
    for (std::size_t i = 0; i < disagreements.size(); ++i) {
      CAPTURE(i);
      std::vector<std::string> words;
      CHECK(seconds_of([&] { words = errors_of(3, {.deadline = 20s}, disagreements[i]); }) < 10);
      for (const std::string& said : words) {
        CHECK(said == words[0]);
        CHECK(contains(said, "every rank in the same collective"));
      }
    }
  }
  TEST_CASE("a barrier is not taken for an all_gather that left data of the same size behind") {
    const auto words = errors_of(2, {.deadline = 20s}, [](Communicator& c) {
      (void)gather(c, {c.rank()});
      if (c.rank() == 0) c.barrier();
      if (c.rank() == 1) (void)gather(c, {5});
    });
    for (const std::string& said : words) CHECK(contains(said, "barrier"));
  }
  TEST_CASE("an exception on one rank wakes its peers out of their collective, and run rethrows it with its own type") {
    std::atomic<int> woken{0};
    const auto f = [&](Communicator& c) {
      if (c.rank() == 1) {
        std::this_thread::sleep_for(50ms);
        throw std::out_of_range("label 9");
      }
      try {
        c.barrier();
      } catch (const CommError& error) {
        if (contains(error.what(), "threads::run: expected every rank to finish, found rank 1 failed: label 9")) ++woken;
        throw;
      }
    };
    double seconds = 0;
    seconds = seconds_of(
        [&] { check_says(refusal<std::out_of_range>([&] { threads::run(4, f, {.deadline = 30s}); }), "label 9"); });
    CHECK(woken == 3);
    CHECK(seconds < 10);
  }
  TEST_CASE("the library's own errors and what is no std::exception keep their type too") {
    const auto fail_with = [](auto error) {
      return [=](Communicator& c) {
        if (c.rank() == 0) throw error;
        c.barrier();
      };
    };
    CHECK(refusal<DataError>([&] { threads::run(3, fail_with(DataError({"read", "a", "b"}))); }).operation() == "read");
    CHECK_THROWS_AS(threads::run(3, fail_with(42)), int);
  }
  TEST_CASE("a CommError of one rank's own making is the first cause, not what its peers see of it") {
    for (int i = 0; i < 20; ++i) {
      const auto error = refusal<CommError>([&] {
        threads::run(4, [](Communicator& c) {
          if (c.rank() == 3) throw CommError({"my link", "a", "b"});
          c.barrier();
        });
      });
      CHECK(error.operation() == "my link");
    }
  }
  TEST_CASE("a rank's own error is rethrown before what its peers saw of its absence") {
    const auto f = [](Communicator& c) {
      if (c.rank() == 1) {
        std::this_thread::sleep_for(400ms);
        throw std::out_of_range("label 9");
      }
      c.barrier();
    };
    check_says(refusal<std::out_of_range>([&] { threads::run(3, f, {.deadline = 100ms}); }), "label 9");
  }
  TEST_CASE("abort breaks the group with the user's cause, on the rank that called it too") {
    const auto words = errors_of(3, {.deadline = 20s}, [](Communicator& c) {
      if (c.rank() == 0) c.abort(UsageError({"recipe", "a finite loss", "NaN"}));
      if (c.rank() == 0) c.abort(UsageError({"afterthought", "a", "b"}));
      c.barrier();
    });
    for (const std::string& said : words) CHECK(said == "recipe: expected a finite loss, found NaN");
  }
  TEST_CASE("a rank that leaves by an exception wakes the part of the group that it was in") {
    const auto words = threads::run(4, [](Communicator& c) -> std::string {
      try {
        const auto half = c.split(c.rank() / 2, 0);
        if (c.rank() == 0) throw std::runtime_error("gone");
        half->barrier();
      } catch (const std::exception& error) {
        return error.what();
      }
      return "none";
    });
    CHECK(words[0] == "gone");
    CHECK(words[1] == "threads: expected every rank to stay, found rank 0 left with an exception");
    CHECK(words[2] == "none");
    CHECK(words[3] == "none");
  }
  TEST_CASE("a rank that leaves while its peers still read what it gave takes nothing with it") {
    for (int i = 0; i < 100; ++i) {
      std::atomic<bool> right{true};
      try {
        threads::run(3, [&](Communicator& c) {
          for (int round = 0; round < 3; ++round) {
            const std::vector<int> all = gather(c, std::vector<int>(5000, c.rank()));
            for (std::size_t k = 0; k < all.size(); ++k) right = right && all[k] == static_cast<int>(k / 5000);
            if (c.rank() == 1 && round == 1) throw std::runtime_error("gone");
          }
        });
        FAIL("no error");
      } catch (const std::runtime_error& error) {
        CHECK(std::string(error.what()) == "gone");
      }
      CHECK(right);
    }
  }
  TEST_CASE("a rank that goes on in a broken group writes over nothing that a peer still reads") {
    for (int i = 0; i < 100; ++i) {
      (void)errors_of(3, {.deadline = 20s}, [&](Communicator& c) {
        for (int round = 0; round < 4; ++round) {
          try {
            (void)gather(c, std::vector<int>(2000, c.rank()));
            if (c.rank() == 0) c.abort(UsageError({"recipe", "a", "b"}));
          } catch (const CommError&) {
            continue;  // a stubborn user: the next call must throw before it touches anything
          }
        }
      });
    }
  }
}
