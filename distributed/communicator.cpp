// SPDX-License-Identifier: Apache-2.0
// The header that rides in every join, and what it catches.
#include "distributed/communicator.h"

#include <algorithm>
#include <string>

namespace losstape {
namespace {

// What precedes the slots in a rank's part of a join. Compared across ranks before any slot is read.
struct Header {
  std::uint64_t magic = 0x6c6f737374617065U;
  std::uint64_t sequence = 0;     // joins of this group so far
  std::uint64_t fingerprint = 0;  // of the operation's name and the slots' size
  std::uint64_t payload_bytes = 0;
  std::uint64_t agreement = 0;  // a hash of what all ranks must have alike
  Status status;
};
static_assert(std::is_trivially_copyable_v<Header>);

constexpr std::size_t kHeaderBytes = (sizeof(Header) + 63) / 64 * 64;

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

}  // namespace

std::size_t Communicator::joined_bytes(int ranks, std::size_t payload_bytes) {
  return ranks <= 1 ? 0 : kHeaderBytes + payload_bytes;
}

std::size_t Communicator::staging_bytes(int ranks, std::size_t payload_bytes) {
  return joined_bytes(ranks, payload_bytes) * static_cast<std::size_t>(ranks);
}

const std::byte* Communicator::payload_of(std::span<std::byte> staging, int rank, std::size_t payload_bytes) {
  return staging.data() + (kHeaderBytes + payload_bytes) * static_cast<std::size_t>(rank) + kHeaderBytes;
}

void Communicator::add_up(std::span<double> sums, const std::byte* from, bool first) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    double term = 0;
    std::memcpy(&term, from + i * sizeof term, sizeof term);
    sums[i] = first ? term : sums[i] + term;
  }
}

Status Communicator::gather_parts(std::string_view operation, std::span<const std::byte> slots,
                                  std::span<const std::byte> sums, const Status& status, std::span<std::byte> staging,
                                  Traffic traffic, std::uint64_t agreement) {
  const std::size_t payload = slots.size() + sums.size();
  const std::size_t part = kHeaderBytes + payload;
  const std::size_t needed = part * static_cast<std::size_t>(size());
  if (staging.size() < needed) {
    throw UsageError(
        {"join", std::to_string(needed) + " bytes of staging", std::to_string(staging.size()), "reserve staging_bytes()"});
  }
  Header mine;
  mine.sequence = sequence_++;
  mine.fingerprint = fnv1a(operation);
  mine.payload_bytes = payload;
  mine.agreement = agreement;
  mine.status = status;
  // In place: this rank's part is written where the gather will have it.
  const std::span<std::byte> own = staging.subspan(part * static_cast<std::size_t>(rank()), part);
  std::memcpy(own.data(), &mine, sizeof mine);
  if (!slots.empty()) std::memcpy(own.data() + kHeaderBytes, slots.data(), slots.size());
  if (!sums.empty()) std::memcpy(own.data() + kHeaderBytes + slots.size(), sums.data(), sums.size());
  all_gather(own, staging.first(needed), traffic);
  Status first;
  int stranger = -1;
  Header rank0;
  for (int r = 0; r < size(); ++r) {
    Header theirs;
    std::memcpy(static_cast<void*>(&theirs), payload_of(staging, r, payload) - kHeaderBytes, sizeof theirs);
    if (r == 0) rank0 = theirs;
    // Every rank compares with rank 0, so all name the same one.
    if (theirs.magic != mine.magic || theirs.sequence != rank0.sequence || theirs.fingerprint != rank0.fingerprint ||
        theirs.payload_bytes != rank0.payload_bytes) {
      const CommError desync({std::string(operation), "every rank in the same collective",
                              "rank " + std::to_string(r) + " in another one than rank 0 (" +
                                  std::to_string(theirs.sequence) + " joins before it, " + std::to_string(rank0.sequence) +
                                  " on rank 0)",
                              "all ranks record the same nodes in the same order"});
      abort(desync);
      throw desync;
    }
    if (first.ok() && !theirs.status.ok()) {
      first = theirs.status;
      first.rank = r;
    }
    if (stranger < 0 && theirs.agreement != rank0.agreement) stranger = r;
  }
  if (first.ok() && stranger >= 0) {
    first = Status(UsageError({std::string(operation), "every rank with the same options, labels and packing as rank 0",
                               "others", "only the columns of the vocabulary differ between ranks"}));
    first.rank = stranger;
  }
  return first;
}

void Communicator::all_reduce(std::span<double> values, Reduce reduce) {
  if (size() == 1) return;
  std::vector<std::byte> staging(staging_bytes(size(), values.size_bytes()));
  void (*fold)(double&, const double&) = nullptr;
  switch (reduce) {
    case Reduce::sum: fold = [](double& a, const double& b) { a += b; }; break;
    // A NaN of any rank wins.
    case Reduce::min: fold = [](double& a, const double& b) { a = b < a || b != b ? b : a; }; break;
    case Reduce::max: fold = [](double& a, const double& b) { a = b > a || b != b ? b : a; }; break;
  }
  join("all_reduce", values, fold, {}, {}, std::span<std::byte>(staging)).raise(size());
}

void Communicator::check_room(std::size_t part, std::size_t all, int ranks) {
  if (all == part * static_cast<std::size_t>(ranks)) return;
  throw UsageError({"all_gather", "room for " + std::to_string(ranks) + " parts of " + std::to_string(part) + " bytes",
                    std::to_string(all) + " bytes"});
}

bool Communicator::agreed(std::uint64_t layout) const {
  return std::find(agreed_.begin(), agreed_.end(), layout) != agreed_.end();
}

}  // namespace losstape
