// SPDX-License-Identifier: Apache-2.0
// A communicator that counts what passes through it.
#pragma once

#include <memory>

#include "distributed/communicator.h"

namespace losstape {

// Calls, and the bytes that this rank gave to them. Bytes received are `size` times as many in an all-gather.
struct CollectiveCounts {
  int calls = 0;
  std::size_t bytes = 0;
};

// Passes everything on to another communicator and keeps counts, a step's and the handshakes' apart.
class CountingCommunicator final : public Communicator {
 public:
  // Keeps a reference: `inner` outlives this.
  explicit CountingCommunicator(Communicator& inner) : inner_(&inner) {}

  [[nodiscard]] CollectiveCounts step() const { return step_; }
  [[nodiscard]] CollectiveCounts handshake() const { return handshake_; }
  void reset() { step_ = handshake_ = {}; }

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] std::chrono::milliseconds deadline() const override { return inner_->deadline(); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Traffic traffic) override;
  void barrier() override { inner_->barrier(); }
  void abort(const Error& cause) override { inner_->abort(cause); }
  // The part has counts of its own.
  [[nodiscard]] std::unique_ptr<Communicator> split(int colour, int key) override;

 private:
  Communicator* inner_;
  std::unique_ptr<Communicator> owned_;
  CollectiveCounts step_;
  CollectiveCounts handshake_;
};

}  // namespace losstape
