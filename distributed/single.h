// SPDX-License-Identifier: Apache-2.0
// A group of one rank, by name: nothing ever falls back to it.
#pragma once

#include "distributed/communicator.h"

namespace losstape {

class SingleCommunicator final : public Communicator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] std::chrono::milliseconds deadline() const override { return std::chrono::milliseconds(0); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Traffic traffic) override;
  void barrier() override {}
  void abort(const Error& cause) override;
  [[nodiscard]] std::unique_ptr<Communicator> split(int colour, int key) override;
};

}  // namespace losstape
