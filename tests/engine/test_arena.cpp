// SPDX-License-Identifier: Apache-2.0
#include "engine/arena.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/allocations.h"
#include "tests/support/refusal.h"

using namespace losstape;
using losstape::testing::allocations_in;
using losstape::testing::refusal;

TEST_SUITE("engine/arena") {
  TEST_CASE("every piece starts on 64 bytes, keeps its content and shares no byte with another") {
    Arena arena;
    std::vector<std::span<unsigned char>> pieces;
    for (Index bytes : {1, 63, 64, 65, 0, 5000, 200'000, 7, 1'000'000}) {
      const auto piece = arena.allocate<unsigned char>(bytes, 1, Purpose::saved).span();
      CHECK(reinterpret_cast<std::uintptr_t>(piece.data()) % Arena::kPiece == 0);
      std::memset(piece.data(), static_cast<int>(pieces.size()) + 1, piece.size());
      pieces.push_back(piece);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      for (const unsigned char byte : pieces[i]) REQUIRE(byte == i + 1);
    }
  }
  TEST_CASE("bytes are counted by purpose in multiples of 64, now and at the most") {
    Arena arena;
    (void)arena.allocate<double>(9, 1, Purpose::saved);   // 72 → 128
    (void)arena.allocate<float>(4, 4, Purpose::columns);  // 64
    const Arena::Mark mark = arena.mark();
    (void)arena.allocate<float>(100, 1, Purpose::workspace);  // 400 → 448
    CHECK(arena.held(Purpose::saved) == 128);
    CHECK(arena.held(Purpose::columns) == 64);
    CHECK(arena.held(Purpose::workspace) == 448);
    CHECK(arena.peak() == 640);
    arena.rewind(mark);
    CHECK(arena.held(Purpose::workspace) == 0);
    CHECK(arena.peak(Purpose::workspace) == 448);
    (void)arena.allocate<float>(16, 1, Purpose::workspace);
    CHECK(arena.held(Purpose::workspace) == 64);
    CHECK(arena.peak(Purpose::workspace) == 448);
    CHECK(arena.peak() == 640);
    arena.clear();
    for (const Purpose purpose : {Purpose::saved, Purpose::columns, Purpose::nodes, Purpose::workspace}) {
      CHECK(arena.held(purpose) == 0);
    }
    CHECK(arena.peak() == 640);
  }
  TEST_CASE("a rewind gives the same memory again, across chunks too") {
    Arena arena;
    const auto* first = arena.allocate<char>(1000, 1, Purpose::nodes).data;
    const Arena::Mark mark = arena.mark();
    const auto* next = arena.allocate<char>(1000, 1, Purpose::nodes).data;
    (void)arena.allocate<char>(500'000, 1, Purpose::nodes);  // a chunk of its own
    arena.rewind(mark);
    CHECK(arena.allocate<char>(10, 1, Purpose::nodes).data == next);
    arena.clear();
    CHECK(arena.held(Purpose::nodes) == 0);
    CHECK(first != next);
  }
  TEST_CASE("after clear a step as large as the largest fits one chunk and asks the system for nothing") {
    Arena arena;
    const auto step = [&](Index scale) {
      for (Index i = 1; i < 40; ++i) (void)arena.allocate<float>(i * scale, 3, Purpose::columns);
      const Arena::Mark mark = arena.mark();
      (void)arena.allocate<double>(1000 * scale, 1, Purpose::workspace);
      arena.rewind(mark);
      arena.clear();
    };
    CHECK(allocations_in([&] { step(100); }) > 0);
    const std::size_t capacity = arena.capacity();
    CHECK(allocations_in([&] {
            step(100);
            step(7);
            step(100);
          }) == 0);
    CHECK(arena.capacity() == capacity);
    CHECK(capacity >= arena.peak());
    CHECK(allocations_in([&] { step(1000); }) > 0);
    CHECK(allocations_in([&] { step(1000); }) == 0);
  }
  TEST_CASE("sizes that overflow are refused and leave the arena as it was") {
    Arena arena;
    (void)arena.allocate<float>(10, 1, Purpose::saved);
    const Index most = std::numeric_limits<Index>::max();
    (void)refusal([&] { (void)arena.allocate<double>(most, 1, Purpose::saved); });
    (void)refusal([&] { (void)arena.allocate<double>(most, most, Purpose::saved); });
    (void)refusal([&] { (void)arena.allocate<char>(-1, 1, Purpose::saved); });
    (void)refusal([&] { (void)arena.allocate<char>(1, -1, Purpose::saved); });
    (void)refusal([&] { (void)arena.allocate(std::numeric_limits<std::size_t>::max(), 1, Purpose::saved); });
    (void)refusal([&] { (void)arena.allocate(std::size_t{1} << 40U, std::size_t{1} << 40U, Purpose::saved); });
    CHECK(arena.held(Purpose::saved) == 64);
    CHECK(arena.peak() == 64);
  }
  TEST_CASE("memory that the system does not have is bad_alloc, and the arena goes on") {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end the program instead
    Arena arena;
    CHECK_THROWS_AS((void)arena.allocate<char>(Index{1} << 60, 1, Purpose::saved), std::bad_alloc);
    CHECK(arena.held(Purpose::saved) == 0);
    CHECK(arena.allocate<char>(1, 1, Purpose::saved).data != nullptr);
#endif
  }
  TEST_CASE("an element of a list never moves, and a shorter list forgets the segments that it no longer needs") {
    Arena arena;
    ArenaList<int> list(arena);
    std::vector<const int*> addresses;
    for (int i = 0; i < 5000; ++i) addresses.push_back(&list.push(i));
    bool kept = true;
    for (std::size_t i = 0; i < addresses.size(); ++i)
      kept = kept && &list[i] == addresses[i] && list[i] == static_cast<int>(i);
    CHECK(kept);
    for (const std::size_t size : {4000U, 49U, 48U, 47U, 16U, 15U, 1U, 0U}) {
      list.truncate(size);
      CHECK(list.size() == size);
      CHECK(list.push(-1) == -1);
      CHECK(list[size] == -1);
      if (size > 0) CHECK(list[size - 1] == static_cast<int>(size) - 1);
    }
  }
  TEST_CASE("a list that shrinks with a rewound arena grows again on the same memory") {
    Arena arena;
    ArenaList<int> list(arena);
    for (int i = 0; i < 16; ++i) list.push(i);
    const std::size_t held = arena.held(Purpose::nodes);
    for (int repetition = 0; repetition < 3; ++repetition) {
      const Arena::Mark mark = arena.mark();
      for (int i = 16; i < 100; ++i) list.push(i);
      list.truncate(16);
      arena.rewind(mark);
      CHECK(arena.held(Purpose::nodes) == held);
    }
    CHECK(list[15] == 15);
  }
}
