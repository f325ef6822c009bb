// SPDX-License-Identifier: Apache-2.0
// One rank's collectives: copies to itself.
#include "distributed/single.h"

#include <cstring>

namespace losstape {

void SingleCommunicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Traffic /*traffic*/) {
  check_room(mine.size(), all.size(), 1);
  if (!mine.empty()) std::memmove(all.data(), mine.data(), mine.size());
}

void SingleCommunicator::abort(const Error& /*cause*/) {}

std::unique_ptr<Communicator> SingleCommunicator::split(int /*colour*/, int /*key*/) {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace losstape
