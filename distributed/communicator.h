// SPDX-License-Identifier: Apache-2.0
// What ranks do together: one interface for every backend, the join that nodes call, and the two kinds of group.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "distributed/status.h"
#include "engine/dtype.h"
#include "engine/error.h"

namespace losstape {

// What a collective is for. The handshake of a layout that is seen for the first time is counted apart from a step's.
enum class Traffic : unsigned char { step, handshake };

enum class Reduce : unsigned char { sum, min, max };

// A group of ranks. Every call is made by all ranks in the same order; each returns or throws within the deadline.
// Errors: CommError (timeout, a peer that failed, ranks that do not agree on the call). The first cause of what broke a
// group is kept: later calls throw it at once.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual std::chrono::milliseconds deadline() const = 0;
  // Concatenates every rank's `mine` in rank order into `all`; equal sizes on every rank.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Traffic traffic) = 0;
  virtual void barrier() = 0;
  // Breaks the group: peers that wait, and all later calls, throw `cause`.
  virtual void abort(const Error& cause) = 0;
  // The ranks of one colour, ordered by key then rank. Called by all ranks.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int colour, int key) = 0;

  // Reduces element by element in rank order: every rank gets the same bits. Allocates; nodes use join.
  void all_reduce(std::span<double> values, Reduce reduce);

  // Bytes of staging that a join of this payload needs: this rank's part and one a rank.
  [[nodiscard]] static std::size_t staging_bytes(int ranks, std::size_t payload_bytes);
  // Bytes that one rank gives to that join; none in a group of one.
  [[nodiscard]] static std::size_t joined_bytes(int ranks, std::size_t payload_bytes);

  // Folds every rank's slots in rank order into `slots`, and adds up every rank's `sums`, in one collective; returns the
  // first bad status of any rank, and then leaves both as they were. `operation` and the sizes are compared across ranks:
  // those that joined different things all throw a CommError. `staging` is staging_bytes(size(), bytes of slots and sums)
  // long.
  template <class Slot>
  [[nodiscard]] Status join(std::string_view operation, std::span<Slot> slots, void (*fold)(Slot& into, const Slot& from),
                            std::span<double> sums, const Status& status, std::span<std::byte> staging,
                            Traffic traffic = Traffic::step) {
    static_assert(std::is_trivially_copyable_v<Slot>);
    Status first = gather_parts(operation, std::as_bytes(slots), std::as_bytes(sums), status, staging, traffic);
    if (!first.ok()) return first;
    const std::size_t payload = slots.size_bytes() + sums.size_bytes();
    for (int r = 0; r < size(); ++r) {
      const std::byte* part = payload_of(staging, r, payload);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        Slot from;
        std::memcpy(static_cast<void*>(&from), part + i * sizeof(Slot), sizeof(Slot));
        if (r == 0) {
          slots[i] = from;
        } else {
          fold(slots[i], from);
        }
      }
      add_up(sums, part + slots.size_bytes(), r == 0);
    }
    return first;
  }

  // Layouts that all ranks agreed on, by fingerprint.
  [[nodiscard]] bool agreed(std::uint64_t layout) const;
  void remember(std::uint64_t layout) { agreed_.push_back(layout); }

 private:
  Status gather_parts(std::string_view operation, std::span<const std::byte> slots, std::span<const std::byte> sums,
                      const Status& status, std::span<std::byte> staging, Traffic traffic);
  static const std::byte* payload_of(std::span<std::byte> staging, int rank, std::size_t payload_bytes);
  static void add_up(std::span<double> sums, const std::byte* from, bool first);

  std::uint64_t sequence_ = 0;
  std::vector<std::uint64_t> agreed_;
};

namespace detail {

// A group that an operation works over; without a communicator it is one rank. Does not own the communicator.
class Group {
 public:
  Group() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a communicator stands for its group
  Group(Communicator& communicator) : communicator_(communicator.size() > 1 ? &communicator : nullptr) {}

  [[nodiscard]] int rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  [[nodiscard]] int size() const { return communicator_ == nullptr ? 1 : communicator_->size(); }
  // Null in a group of one: there is nothing to say to anyone.
  [[nodiscard]] Communicator* communicator() const { return communicator_; }

 private:
  Communicator* communicator_ = nullptr;
};

}  // namespace detail

// Ranks that hold columns of one vocabulary. Token columns, sequence columns and scalars are replicated over them.
class TensorGroup : public detail::Group {
 public:
  using detail::Group::Group;
};

// Ranks that hold rows of one pack. Token columns are partitioned over them; sequence columns and scalars are replicated.
class ContextGroup : public detail::Group {
 public:
  using detail::Group::Group;
};

}  // namespace losstape
