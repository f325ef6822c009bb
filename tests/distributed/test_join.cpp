// SPDX-License-Identifier: Apache-2.0
// The join: slots folded in rank order, sums, the status header, and what happens when ranks join different things.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "distributed/counting.h"
#include "distributed/single.h"
#include "distributed/threads.h"
#include "tests/support/allocations.h"
#include "tests/support/refusal.h"

using namespace losstape;
using namespace losstape::testing;
using namespace std::chrono_literals;

namespace {

// Remembers in which order it was folded: digits of a number.
struct Word {
  long digits = 0;
  long count = 0;
};
void append(Word& into, const Word& from) {
  for (long k = 0; k < from.count; ++k) into.digits *= 10;
  into.digits += from.digits;
  into.count += from.count;
}

struct Joined {
  Status status;
  std::vector<Word> words;
  std::vector<double> sums;
};

Joined join(Communicator& c, std::vector<Word> words, std::vector<double> sums, const Status& status = {},
            const char* operation = "test") {
  std::vector<std::byte> staging(
      Communicator::staging_bytes(c.size(), words.size() * sizeof(Word) + sums.size() * sizeof(double)));
  const Status found = c.join(operation, std::span(words), &append, sums, status, staging);
  return {found, words, sums};
}

Status bad(const char* words, Index row = -1) {
  return Status(UsageError({"node", words, "something else", "mend it", row, 2}));
}

}  // namespace

TEST_SUITE("distributed/join") {
  TEST_CASE("slots fold in rank order, sums add up in rank order, on every rank alike") {
    const auto found = threads::run(4, [](Communicator& c) {
      const long digit = c.rank() + 1;
      return join(c, {{digit, 1}, {9 - digit, 1}, {0, 0}}, {0.1 * static_cast<double>(digit), c.rank() == 1 ? 1e17 : 1.0});
    });
    const double first = ((0.1 * 1 + 0.1 * 2) + 0.1 * 3) + 0.1 * 4;
    const double second = ((1.0 + 1e17) + 1.0) + 1.0;
    for (const Joined& here : found) {
      CHECK(here.status.ok());
      CHECK(here.words[0].digits == 1234);
      CHECK(here.words[1].digits == 8765);
      CHECK(here.words[2].count == 0);
      CHECK(here.sums == std::vector<double>{first, second});
    }
  }
  TEST_CASE("joins of nothing, of slots alone and of sums alone are joins") {
    const auto found = threads::run(2, [](Communicator& c) {
      bool right = join(c, {}, {}).status.ok();
      right = right && join(c, {{c.rank() + 1, 1}}, {}).words[0].digits == 12;
      return right && join(c, {}, {1.5}).sums[0] == 3;
    });
    for (const bool right : found) CHECK(right);
  }
  TEST_CASE("the first bad status of any rank wins, every rank gets it, and slots and sums stay as they were (B49)") {
    const auto found = threads::run(4, [](Communicator& c) {
      const Status status = c.rank() == 2 ? bad("two", 7) : c.rank() == 3 ? bad("three") : Status();
      Joined joined = join(c, {{c.rank(), 1}}, {5}, status);
      CHECK(join(c, {{c.rank(), 1}}, {5}).sums[0] == 20);  // the group works on
      return joined;
    });
    for (std::size_t r = 0; r < 4; ++r) {
      CHECK_FALSE(found[r].status.ok());
      CHECK(found[r].status.rank == 2);
      CHECK(found[r].words[0].digits == static_cast<long>(r));
      CHECK(found[r].sums[0] == 5);
      const auto error = refusal([&] { found[r].status.raise(4); });
      CHECK(std::string(error.what()) ==
            "node: expected two, found something else on rank 2 at row 7 (2 such rows); mend it");
    }
  }
  TEST_CASE("ranks that join different operations, sizes or counts all get a CommError, and nobody hangs") {
    const std::array<std::function<void(Communicator&)>, 4> disagreements{
        [](Communicator& c) {
          (void)join(c, {{1, 1}}, {}, {}, c.rank() == 1 ? "entropy" : "logprob");
        },
        [](Communicator& c) { (void)join(c, std::vector<Word>(c.rank() == 1 ? 2 : 1), {}); },
        [](Communicator& c) {
          // one rank's joins are counted from the start again
          (void)join(c, {{1, 1}}, {});
          CountingCommunicator counted(c);
          (void)join(c.rank() == 1 ? counted : c, {{1, 1}}, {});
        },
        [](Communicator& c) {
          // as many bytes, but one rank is a join ahead: only its number can tell
          std::vector<std::byte> all(Communicator::joined_bytes(2, 16) * 2);
          if (c.rank() == 1) c.all_gather(std::span(all).first(all.size() / 2), all, Traffic::step);
          if (c.rank() == 0) (void)join(c, {{1, 1}}, {});
          (void)join(c, {{1, 1}}, {});
        },
    };
    for (std::size_t i = 0; i < disagreements.size(); ++i) {
      CAPTURE(i);
      const auto words = threads::run(2,
                                      [&](Communicator& c) -> std::string {
                                        try {
                                          disagreements[i](c);
                                        } catch (const CommError& error) {
                                          return error.found();
                                        }
                                        return "none";
                                      },
                                      {.deadline = 20s});
      CHECK(words[0] != "none");
      CHECK(words[0] == words[1]);
    }
  }
  TEST_CASE(
      "ranks that must agree on options and do not get the same UsageError, a bad status goes before it, and the group "
      "works on") {
    const auto join_agreeing = [](Communicator& c, std::uint64_t agreement, const Status& status) {
      double sum = 1;
      std::vector<std::byte> staging(Communicator::staging_bytes(c.size(), sizeof sum));
      const Status found =
          c.join("test", std::span<Word>(), &append, std::span(&sum, 1), status, staging, Traffic::step, agreement);
      CHECK(sum == (found.ok() ? c.size() : 1));
      return found;
    };
    const auto words = threads::run(3, [&](Communicator& c) {
      CHECK(join_agreeing(c, 7, {}).ok());
      const Status stranger = join_agreeing(c, c.rank() == 1 ? 8 : 7, {});
      const Status worse = join_agreeing(c, c.rank() == 1 ? 8 : 7, c.rank() == 2 ? bad("two") : Status());
      CHECK(worse.rank == 2);
      CHECK(join_agreeing(c, 9, {}).ok());
      return std::string(refusal([&] { stranger.raise(3); }).what());
    });
    for (const std::string& said : words) {
      CHECK(contains(said, "test: expected every rank with the same options"));
      CHECK(contains(said, "on rank 1"));
      CHECK(said == words[0]);
    }
  }
  TEST_CASE("a desync stays: the group is broken for good") {
    const auto found = threads::run(2, [](Communicator& c) {
      int errors = 0;
      for (const char* operation : {c.rank() == 0 ? "a" : "b", "c"}) {
        try {
          (void)join(c, {{1, 1}}, {}, {}, operation);
        } catch (const CommError&) {
          ++errors;
        }
      }
      return errors;
    });
    CHECK(found == std::vector<int>{2, 2});
  }
  TEST_CASE("staging that is too short is refused before anything is sent") {
    std::vector<Word> words(3);
    std::vector<std::byte> staging(16);
    const auto f = [&](Communicator& c) { (void)c.join("test", std::span(words), &append, {}, Status(), staging); };
    check_says(refusal([&] { threads::run(2, f); }), "join: expected");
  }
  TEST_CASE("a join with staging of its own allocates nothing") {
    const auto counts = threads::run(2, [](Communicator& c) {
      std::vector<Word> words(10);
      std::vector<double> sums(3);
      std::vector<std::byte> staging(Communicator::staging_bytes(2, 10 * sizeof(Word) + 3 * sizeof(double)));
      const auto step = [&] { return c.join("test", std::span(words), &append, sums, Status(), staging).ok(); };
      CHECK(step());
      c.barrier();
      const std::size_t count = allocations_in([&] {
        for (int i = 0; i < 10; ++i) (void)step();
        c.barrier();
      });
      c.barrier();
      return count;
    });
    CHECK(counts == std::vector<std::size_t>{0, 0});
  }
  TEST_CASE("a group of one talks to nobody, and a bad status is an error there too, without a rank") {
    SingleCommunicator alone;
    CountingCommunicator counted(alone);
    const TensorGroup group(counted);
    CHECK(group.size() == 1);
    CHECK(group.communicator() == nullptr);
    std::array<Word, 1> words{{{4, 1}}};
    group.join("test", std::span<Word>(words), &append, {});
    CHECK(words[0].digits == 4);
    CHECK(counted.step().calls == 0);
    CHECK(std::string(refusal([&] { group.join("test", std::span<Word>(words), &append, {}, {}, bad("one")); }).what()) ==
          "node: expected one, found something else (2 such rows); mend it");
    CHECK(Communicator::joined_bytes(1, 1000) == 0);
    CHECK(Communicator::staging_bytes(1, 1000) == 0);
    CHECK(TensorGroup().size() == 1);
    CHECK(ContextGroup().rank() == 0);
    // a join on the communicator itself keeps its own slots, and needs no staging
    const Joined joined = join(counted, {{4, 1}}, {1.5});
    CHECK(joined.status.ok());
    CHECK(joined.words[0].digits == 4);
    CHECK(joined.sums[0] == 1.5);
    CHECK_FALSE(join(counted, {}, {}, bad("one")).status.ok());
    CHECK(counted.step().calls == 0);
  }
  TEST_CASE("the single communicator copies to itself and is its own part") {
    SingleCommunicator alone;
    const std::array<std::byte, 2> mine{std::byte{1}, std::byte{2}};
    std::array<std::byte, 2> all{};
    alone.all_gather(mine, all, Traffic::step);
    CHECK(all == mine);
    alone.barrier();
    CHECK(alone.split(3, 4)->size() == 1);
    double x = 2.5;
    alone.all_reduce(std::span(&x, 1), Reduce::sum);
    CHECK(x == 2.5);
    CHECK(alone.rank() == 0);
    std::array<std::byte, 1> small{};
    (void)refusal([&] { alone.all_gather(mine, small, Traffic::step); });
  }
}

TEST_SUITE("distributed/counting") {
  TEST_CASE("calls and bytes of this rank are counted, a step's and a handshake's apart") {
    threads::run(2, [](Communicator& c) {
      CountingCommunicator counted(c);
      CHECK(counted.rank() == c.rank());
      CHECK(counted.size() == 2);
      CHECK(counted.deadline() == c.deadline());
      const std::array<std::byte, 24> mine{};
      std::array<std::byte, 48> all{};
      counted.all_gather(mine, all, Traffic::step);
      counted.all_gather(mine, all, Traffic::step);
      counted.all_gather(std::span(mine).first(8), std::span(all).first(16), Traffic::handshake);
      counted.barrier();
      CHECK(counted.step().calls == 2);
      CHECK(counted.step().bytes == 48);
      CHECK(counted.handshake().calls == 1);
      CHECK(counted.handshake().bytes == 8);
      counted.reset();
      CHECK(counted.step().calls == 0);
      CHECK(counted.handshake().bytes == 0);
      (void)join(counted, {{1, 1}}, {2});
      CHECK(counted.step().calls == 1);
      CHECK(counted.step().bytes == Communicator::joined_bytes(2, sizeof(Word) + sizeof(double)));
    });
  }
  TEST_CASE("a part has counts of its own, and an abort passes through") {
    const auto words = threads::run(2, [](Communicator& c) -> std::string {
      CountingCommunicator counted(c);
      const auto part = counted.split(0, 0);
      (void)part->all_reduce(1.0, Reduce::sum);
      CHECK(counted.step().calls == 0);
      CHECK(dynamic_cast<CountingCommunicator&>(*part).step().calls == 1);
      if (c.rank() == 0) counted.abort(UsageError({"recipe", "a", "b"}));
      try {
        counted.barrier();
      } catch (const CommError& error) {
        return error.operation();
      }
      return "none";
    });
    CHECK(words == std::vector<std::string>{"recipe", "recipe"});
  }
}

TEST_SUITE("distributed/status") {
  TEST_CASE("an error travels as plain bytes and comes out with its type, parts, row and count") {
    const ErrorParts parts{"vocab_stats", "a label below 8", "9", "check the ids", 3, 2};
    CHECK(refusal<UsageError>([&] { Status(UsageError(parts)).raise(1); }).hint() == "check the ids");
    CHECK(refusal<DataError>([&] { Status(DataError(parts)).raise(1); }).expected() == "a label below 8");
    CHECK(refusal<DeviceError>([&] { Status(DeviceError(parts)).raise(1); }).row() == 3);
    CHECK(refusal<CommError>([&] { Status(CommError(parts)).raise(1); }).count() == 2);
    CHECK(Status().ok());
    Status().raise(8);
  }
  TEST_CASE("words that are too long are cut to fit, never inside a character") {
    const std::string dots(200, '.');
    CHECK(refusal([&] { Status(UsageError({dots, dots, "x"})).raise(1); }).expected() == std::string(103, '.'));
    CHECK(refusal([&] { Status(UsageError({dots, dots, "x"})).raise(1); }).operation() == std::string(39, '.'));
    for (std::size_t before = 98; before < 104; ++before) {
      const std::string words = std::string(before, '.') + "≤≤≤";  // three bytes each
      const std::string cut = refusal([&] { Status(UsageError({"x", words, "x"})).raise(1); }).expected();
      CHECK(cut.size() <= 103);
      CHECK((cut.size() - before) % 3 == 0);
    }
    const std::string fits = std::string(100, '.') + "≤";
    CHECK(refusal([&] { Status(UsageError({"x", fits, "x"})).raise(1); }).expected() == fits);
  }
}
