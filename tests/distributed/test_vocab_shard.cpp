// SPDX-License-Identifier: Apache-2.0
#include "distributed/vocab_shard.h"

#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "distributed/counting.h"
#include "distributed/threads.h"
#include "tests/support/allocations.h"
#include "tests/support/refusal.h"

using namespace losstape;
using namespace losstape::testing;
using namespace std::chrono_literals;

namespace {

using Ranges = std::vector<std::pair<Index, Index>>;

// What each rank's handshake says over these shards, or nothing.
std::vector<std::string> handshake(const Ranges& ranges, const std::vector<Index>& vocab_sizes) {
  return threads::run(static_cast<int>(ranges.size()), [&](Communicator& c) -> std::string {
    const auto rank = static_cast<std::size_t>(c.rank());
    const auto shard = VocabShard::range(c, ranges[rank].first, ranges[rank].second, vocab_sizes[rank]);
    try {
      agree_on_layout(shard);
    } catch (const UsageError& error) {
      return error.what();
    }
    return {};
  });
}
std::vector<std::string> handshake(const Ranges& ranges, Index vocab_size) {
  return handshake(ranges, std::vector<Index>(ranges.size(), vocab_size));
}

void check_all_say(const std::vector<std::string>& words, const std::string& part) {
  for (const std::string& said : words) {
    CAPTURE(said);
    CHECK(contains(said, part));
    CHECK(said == words[0]);
  }
}

}  // namespace

TEST_SUITE("distributed/vocab_shard") {
  TEST_CASE("even shares tile the stored columns in rank order and differ by one at most, padding stands at the end") {
    for (const int ranks : {1, 2, 3, 8}) {
      for (const auto& [vocab, stored] :
           {std::pair<Index, Index>{10, -1}, {10, 16}, {2, -1}, {0, -1}, {0, 5}, {151'936, 152'064}}) {
        const auto shards = threads::run(ranks, [&, v = vocab, s = stored](Communicator& c) {
          const VocabShard shard = VocabShard::even(c, v, s);
          agree_on_layout(shard);
          return shard;
        });
        const Index columns = stored < 0 ? vocab : stored;
        Index at = 0;
        Index real = 0;
        for (const VocabShard& shard : shards) {
          CHECK(shard.begin == at);
          at = shard.end;
          CHECK(shard.width() >= columns / ranks);
          CHECK(shard.width() <= columns / ranks + 1);
          CHECK(shard.real_width() <= shard.width());
          real += shard.real_width();
        }
        CHECK(at == columns);
        CHECK(real == vocab);
      }
    }
  }
  TEST_CASE("an id is held by the rank whose real columns it is among") {
    const VocabShard shard = VocabShard::range({}, 4, 10, 8);
    CHECK(shard.width() == 6);
    CHECK(shard.real_width() == 4);
    CHECK_FALSE(shard.holds(3));
    CHECK(shard.holds(4));
    CHECK(shard.holds(7));
    CHECK_FALSE(shard.holds(8));  // padding
    CHECK_FALSE(shard.holds(-1));
    CHECK(VocabShard::range({}, 9, 12, 8).real_width() == 0);
    CHECK_FALSE(VocabShard::range({}, 9, 12, 8).holds(9));
  }
  TEST_CASE("a whole vocabulary belongs to one rank") {
    CHECK(VocabShard::whole(7).width() == 7);
    CHECK(VocabShard::whole(7, 8).real_width() == 7);
    agree_on_layout(VocabShard::whole(7, 8));
    agree_on_layout(VocabShard::whole(0));
    check_says(refusal([] { (void)VocabShard::whole(-1); }), "VocabShard::whole: expected 0 ≤ vocab_size ≤ stored columns");
    check_says(refusal([] { (void)VocabShard::whole(8, 7); }), "vocab_size 8, stored 7");
    check_says(refusal([] { (void)VocabShard::even({}, 8, 7); }), "VocabShard::even");
  }
  TEST_CASE("ranges that run backwards or below 0 are refused where they are made") {
    for (const auto& [begin, end, vocab] : std::vector<std::array<Index, 3>>{{-1, 2, 4}, {3, 2, 4}, {0, 2, -1}}) {
      (void)refusal([&, b = begin, e = end, v = vocab] { (void)VocabShard::range({}, b, e, v); });
    }
    const Index most = std::numeric_limits<Index>::max();
    CHECK(VocabShard::even({}, most).width() == most);
  }
  TEST_CASE("uneven and empty shards tile, in any order of ranks") {
    CHECK(handshake({{0, 1}, {1, 7}, {7, 8}}, 8) == std::vector<std::string>(3));
    CHECK(handshake({{3, 8}, {0, 3}}, 8) == std::vector<std::string>(2));
    CHECK(handshake({{0, 0}, {0, 8}, {8, 8}}, 8) == std::vector<std::string>(3));
    CHECK(handshake({{4, 4}, {0, 8}}, 8) == std::vector<std::string>(2));
    CHECK(handshake({{0, 4}, {4, 12}}, 8) == std::vector<std::string>(2));
    CHECK(handshake({{0, 8}, {8, 16}}, 8) == std::vector<std::string>(2));  // the second holds padding alone
  }
  TEST_CASE("overlap, gap, a missing end and two vocabularies are the same UsageError on every rank (B25)") {
    check_all_say(handshake({{0, 5}, {4, 8}}, 8),
                  "vocab_shard: expected shards that tile the vocabulary [0, 8) once, found columns [4, 5) held twice");
    check_all_say(handshake({{0, 3}, {4, 8}}, 8), "columns [3, 4) held by no rank");
    check_all_say(handshake({{1, 3}, {3, 8}}, 8), "columns [0, 1) held by no rank");
    check_all_say(handshake({{0, 3}, {3, 7}}, 8), "columns [7, 8) held by no rank");
    check_all_say(handshake({{0, 0}, {0, 0}}, 8), "columns [0, 8) held by no rank");
    check_all_say(handshake({{0, 4}, {4, 8}, {4, 8}}, 8), "columns [4, 8) held twice");
    check_all_say(handshake({{0, 4}, {4, 9}}, {8, 9}), "vocab_size 8 on one rank, 9 on another");
  }
  TEST_CASE("replicated logits are named as such (B25)") {
    check_all_say(handshake({{0, 8}, {0, 8}}, 8),
                  "the whole vocabulary, [0, 8), on every rank: the logits are replicated, not sharded");
    check_all_say(handshake({{0, 8}, {0, 10}}, 8), "replicated");
  }
  TEST_CASE("one rank that holds a part of the vocabulary is refused like several") {
    check_says(refusal([] { agree_on_layout(VocabShard::range({}, 0, 3, 4)); }), "columns [3, 4) held by no rank");
    check_says(refusal([] { agree_on_layout(VocabShard::range({}, 1, 4, 4)); }), "columns [0, 1) held by no rank");
  }
  TEST_CASE("ranks shake hands once a layout, apart from the step's collectives, and allocate nothing after") {
    threads::run(2, [](Communicator& c) {
      CountingCommunicator counted(c);
      const VocabShard first = VocabShard::even(counted, 10);
      const VocabShard second = VocabShard::even(counted, 12);
      for (int i = 0; i < 3; ++i) {
        agree_on_layout(first);
        agree_on_layout(second);
        agree_on_layout(VocabShard::even(counted, 10));  // the same columns again
      }
      CHECK(counted.handshake().calls == 2);
      CHECK(counted.step().calls == 0);
      c.barrier();
      CHECK(allocations_in([&] { agree_on_layout(first); }) == 0);
      c.barrier();
    });
  }
  TEST_CASE("a layout that was refused is not remembered, and the group works on") {
    threads::run(2, [](Communicator& c) {
      for (int i = 0; i < 2; ++i) {
        (void)refusal([&] { agree_on_layout(VocabShard::range(c, 0, 4, 8)); });
      }
      agree_on_layout(VocabShard::even(c, 8));
    });
  }
  TEST_CASE("a rank that changes its shard alone breaks the group for all instead of hanging") {
    const auto words = threads::run(
        3,
        [](Communicator& c) -> std::string {
          const Ranges before{{0, 2}, {2, 3}, {3, 4}};
          const Ranges after{{0, 2}, {2, 4}, {4, 4}};  // tiles too, but rank 0 cannot know that anything changed
          const auto rank = static_cast<std::size_t>(c.rank());
          agree_on_layout(VocabShard::range(c, before[rank].first, before[rank].second, 4));
          try {
            agree_on_layout(VocabShard::range(c, after[rank].first, after[rank].second, 4));
            (void)c.all_reduce(1.0, Reduce::sum);
          } catch (const CommError& error) {
            return error.what();
          }
          return "none";
        },
        {.deadline = 20s});
    check_all_say(words, "every rank in the same collective");
  }
}
