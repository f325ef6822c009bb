// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/allocations.h"
#include "tests/support/refusal.h"

using namespace losstape;
using losstape::testing::allocations_in;
using losstape::testing::check_says;
using losstape::testing::refusal;

namespace {

struct Range {
  Index begin = 0;
  Index end = 0;
  int thread = -1;
};

// The ranges that a region hands out, by thread.
std::vector<Range> ranges_of(Pool& pool, Index count) {
  std::vector<Range> by_thread(static_cast<std::size_t>(pool.threads()));
  pool.for_ranges(count, [&](Index begin, Index end, int thread) {
    by_thread[static_cast<std::size_t>(thread)] = {begin, end, thread};
  });
  std::erase_if(by_thread, [](const Range& range) { return range.thread < 0; });
  return by_thread;
}

}  // namespace

TEST_SUITE("engine/parallel") {
  TEST_CASE("ranges tile the rows in the threads' order, none is empty, and sizes differ by one at most") {
    for (const int threads : {1, 2, 3, 5}) {
      Pool pool(threads);
      CHECK(pool.threads() == threads);
      for (const Index count : {0, 1, 2, 3, 4, 7, 100, 101}) {
        const std::vector<Range> ranges = ranges_of(pool, count);
        Index at = 0;
        Index least = count;
        Index most = 0;
        for (const Range& range : ranges) {
          CHECK(range.begin == at);
          CHECK(range.end > range.begin);
          at = range.end;
          least = std::min(least, range.end - range.begin);
          most = std::max(most, range.end - range.begin);
        }
        CHECK(at == count);
        if (count >= threads && count > 1) {
          CHECK(static_cast<int>(ranges.size()) == threads);
          CHECK(most - least <= 1);
        }
      }
    }
  }
  TEST_CASE("which thread does which rows depends on the counts alone") {
    Pool pool(3);
    Pool other(3);
    const std::vector<Range> first = ranges_of(pool, 1000);
    for (int i = 0; i < 50; ++i) {
      const std::vector<Range> again = ranges_of(i % 2 == 0 ? pool : other, 1000);
      REQUIRE(again.size() == first.size());
      for (std::size_t k = 0; k < first.size(); ++k) {
        CHECK(again[k].begin == first[k].begin);
        CHECK(again[k].end == first[k].end);
        CHECK(again[k].thread == first[k].thread);
      }
    }
  }
  TEST_CASE("a count near the largest number is shared without overflow") {
    Pool pool(4);
    const Index most = std::numeric_limits<Index>::max();
    const std::vector<Range> ranges = ranges_of(pool, most);
    REQUIRE(ranges.size() == 4);
    CHECK(ranges.front().begin == 0);
    CHECK(ranges.back().end == most);
    for (std::size_t k = 1; k < 4; ++k) CHECK(ranges[k].begin == ranges[k - 1].end);
  }
  TEST_CASE("the exception of the lowest range reaches the caller, and the pool works on") {
    Pool pool(4);
    for (int i = 0; i < 20; ++i) {
      const auto error = refusal<std::runtime_error>([&] {
        pool.for_ranges(100, [](Index begin, Index, int) {
          if (begin >= 25) throw std::runtime_error(std::to_string(begin));
        });
      });
      CHECK(std::string(error.what()) == "25");
    }
    std::atomic<Index> sum{0};
    pool.for_ranges(100, [&](Index begin, Index end, int) { sum += end - begin; });
    CHECK(sum == 100);
  }
  TEST_CASE("a region started inside a region runs on the thread that it finds itself on, whole") {
    Pool pool(3);
    Pool second(2);
    std::array<std::atomic<Index>, 3> inner{};
    std::atomic<bool> same_thread{true};
    pool.for_ranges(3, [&](Index, Index, int thread) {
      const auto self = std::this_thread::get_id();
      for (Pool* const nested : {&pool, &second}) {
        nested->for_ranges(10, [&](Index begin, Index end, int) {
          inner[static_cast<std::size_t>(thread)] += end - begin;
          if (std::this_thread::get_id() != self) same_thread = false;
        });
      }
    });
    CHECK(same_thread);
    for (const auto& count : inner) CHECK(count == 20);
  }
  TEST_CASE("one pool serves several threads: their regions take turns and each is whole") {
    Pool pool(3);
    std::vector<std::thread> users;
    std::array<Index, 4> sums{};
    for (std::size_t user = 0; user < sums.size(); ++user) {
      users.emplace_back([&, user] {
        for (int i = 0; i < 200; ++i) {
          std::array<Index, 3> part{};
          pool.for_ranges(
              17, [&](Index begin, Index end, int thread) { part[static_cast<std::size_t>(thread)] += end - begin; });
          sums[user] += part[0] + part[1] + part[2];
        }
      });
    }
    for (std::thread& user : users) user.join();
    for (const Index sum : sums) CHECK(sum == 200 * 17);
  }
  TEST_CASE("a region allocates nothing") {
    Pool pool(3);
    std::vector<int> touched(90);
    const auto region = [&] {
      pool.for_ranges(90, [&](Index begin, Index end, int) {
        for (Index i = begin; i < end; ++i) ++touched[static_cast<std::size_t>(i)];
      });
    };
    region();
    CHECK(allocations_in([&] {
            for (int i = 0; i < 10; ++i) region();
          }) == 0);
    CHECK(std::all_of(touched.begin(), touched.end(), [](int times) { return times == 11; }));
  }
  TEST_CASE("0 threads means one per hardware thread, and other numbers out of range are refused") {
    CHECK(Pool(0).threads() >= 1);
    check_says(refusal([] { Pool pool(-1); }),
               "Pool: expected threads between 0 (one per hardware thread) and 1024, found -1");
    (void)refusal([] { Pool pool(1025); });
  }
}
