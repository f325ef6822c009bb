// SPDX-License-Identifier: Apache-2.0
// Shares of a vocabulary, and the handshake that finds shares that overlap or leave a gap.
#include "distributed/vocab_shard.h"

#include <algorithm>
#include <string>
#include <vector>

namespace losstape {
namespace {

Index checked_stored(Index vocab_size, Index stored, const char* operation) {
  const Index columns = stored < 0 ? vocab_size : stored;
  if (vocab_size < 0 || columns < vocab_size) {
    throw UsageError({operation, "0 ≤ vocab_size ≤ stored columns",
                      "vocab_size " + std::to_string(vocab_size) + ", stored " + std::to_string(columns)});
  }
  return columns;
}

// floor(size · part / parts) without overflow.
Index share(Index size, Index part, Index parts) { return size / parts * part + size % parts * part / parts; }

struct Claim {
  Index begin = 0;
  Index end = 0;
  Index vocab_size = 0;
};

std::string text(const Claim& claim) { return "[" + std::to_string(claim.begin) + ", " + std::to_string(claim.end) + ")"; }

std::uint64_t fingerprint(const VocabShard& shard) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const Index number : {shard.begin, shard.end, shard.vocab_size}) {
    hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 29U;
  }
  return hash;
}

// What is wrong with the ranks' claims, or nothing.
std::string fault(std::vector<Claim> claims) {
  for (const Claim& claim : claims) {
    if (claim.vocab_size != claims[0].vocab_size) {
      return "vocab_size " + std::to_string(claims[0].vocab_size) + " on one rank, " + std::to_string(claim.vocab_size) +
             " on another";
    }
  }
  const Index vocab_size = claims[0].vocab_size;
  const bool all_whole =
      claims.size() > 1 && vocab_size > 0 &&
      std::all_of(claims.begin(), claims.end(), [&](const Claim& c) { return c.begin == 0 && c.end >= vocab_size; });
  if (all_whole)
    return "the whole vocabulary, " + text(claims[0]) + ", on every rank: the logits are replicated, not sharded";
  std::erase_if(claims, [](const Claim& claim) { return claim.begin == claim.end; });
  std::sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) { return a.begin < b.begin; });
  Index covered = 0;
  for (const Claim& claim : claims) {
    if (claim.begin < covered)
      return "columns [" + std::to_string(claim.begin) + ", " + std::to_string(covered) + ") held twice";
    if (claim.begin > covered)
      return "columns [" + std::to_string(covered) + ", " + std::to_string(claim.begin) + ") held by no rank";
    covered = claim.end;
  }
  if (covered < vocab_size)
    return "columns [" + std::to_string(covered) + ", " + std::to_string(vocab_size) + ") held by no rank";
  return {};
}

}  // namespace

VocabShard VocabShard::whole(Index vocab_size, Index stored) {
  return {0, checked_stored(vocab_size, stored, "VocabShard::whole"), vocab_size, {}};
}

VocabShard VocabShard::even(TensorGroup group, Index vocab_size, Index stored) {
  const Index columns = checked_stored(vocab_size, stored, "VocabShard::even");
  return {share(columns, group.rank(), group.size()), share(columns, group.rank() + 1, group.size()), vocab_size, group};
}

VocabShard VocabShard::range(TensorGroup group, Index begin, Index end, Index vocab_size) {
  if (begin < 0 || end < begin || vocab_size < 0) {
    throw UsageError({"VocabShard::range", "0 ≤ begin ≤ end and vocab_size ≥ 0",
                      text({begin, end, vocab_size}) + " of " + std::to_string(vocab_size)});
  }
  return {begin, end, vocab_size, group};
}

void agree_on_layout(const VocabShard& shard) {
  const int ranks = shard.group.size();
  Communicator* communicator = shard.group.communicator();
  const std::uint64_t layout = fingerprint(shard);
  // Every step comes here: from the second on, nothing is allocated.
  if (communicator != nullptr ? communicator->agreed(layout) : shard.begin == 0 && shard.end >= shard.vocab_size) return;
  std::vector<Claim> claims(static_cast<std::size_t>(ranks));
  claims[static_cast<std::size_t>(shard.group.rank())] = {shard.begin, shard.end, shard.vocab_size};
  if (communicator != nullptr) {
    std::vector<std::byte> staging(Communicator::staging_bytes(ranks, std::span(claims).size_bytes()));
    communicator
        ->join(
            "vocab_shard handshake", std::span(claims),
            +[](Claim& into, const Claim& from) {
              into.begin += from.begin;
              into.end += from.end;
              into.vocab_size += from.vocab_size;
            },
            {}, Status(), std::span<std::byte>(staging), Traffic::handshake)
        .raise(ranks);
  }
  const Index vocab_size = claims[0].vocab_size;
  const std::string found = fault(std::move(claims));
  if (!found.empty()) {
    throw UsageError({"vocab_shard", "shards that tile the vocabulary [0, " + std::to_string(vocab_size) + ") once", found,
                      "VocabShard::even gives each rank its share"});
  }
  if (communicator != nullptr) communicator->remember(layout);
}

}  // namespace losstape
