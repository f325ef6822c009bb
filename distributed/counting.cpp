// SPDX-License-Identifier: Apache-2.0
// Where the counting happens: every collective is an all-gather.
#include "distributed/counting.h"

#include <utility>

namespace losstape {

void CountingCommunicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Traffic traffic) {
  inner_->all_gather(mine, all, traffic);
  CollectiveCounts& counts = traffic == Traffic::step ? step_ : handshake_;
  ++counts.calls;
  counts.bytes += mine.size();
}

std::unique_ptr<Communicator> CountingCommunicator::split(int colour, int key) {
  std::unique_ptr<Communicator> part = inner_->split(colour, key);
  auto counted = std::make_unique<CountingCommunicator>(*part);
  counted->owned_ = std::move(part);
  return counted;
}

}  // namespace losstape
