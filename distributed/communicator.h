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
  // Concatenates every rank's `mine` in rank order into `all`, which is size() times as long; equal sizes on every rank.
  // `mine` may be its own place in `all`.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Traffic traffic) = 0;
  virtual void barrier() = 0;
  // Breaks the group: peers that wait, and all later calls, throw `cause`.
  virtual void abort(const Error& cause) = 0;
  // The ranks of one colour, ordered by key then rank. Called by all ranks.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int colour, int key) = 0;

  // Reduces element by element in rank order: every rank gets the same bits, NaN where any rank has one. Allocates; nodes
  // use join.
  void all_reduce(std::span<double> values, Reduce reduce);
  [[nodiscard]] double all_reduce(double value, Reduce reduce) {
    all_reduce(std::span(&value, 1), reduce);
    return value;
  }

  // Bytes of staging that a join of this payload needs: a part a rank, this rank's own among them.
  [[nodiscard]] static std::size_t staging_bytes(int ranks, std::size_t payload_bytes);
  // Bytes that one rank gives to that join; none in a group of one.
  [[nodiscard]] static std::size_t joined_bytes(int ranks, std::size_t payload_bytes);

  // Folds every rank's slots in rank order into `slots`, and adds up every rank's `sums`, in one collective; returns the
  // first bad status of any rank, and then leaves both as they were. A group of one says nothing to anyone. `operation` and
  // the sizes are compared across ranks: those that joined different things all throw a CommError. `agreement` is a hash of
  // what must be alike on every rank (options, labels); where it is not, all get a bad status. `staging` is
  // staging_bytes(size(), bytes of slots and sums) long.
  template <class Slot>
  [[nodiscard]] Status join(std::string_view operation, std::span<Slot> slots, void (*fold)(Slot& into, const Slot& from),
                            std::span<double> sums, const Status& status, std::span<std::byte> staging,
                            Traffic traffic = Traffic::step, std::uint64_t agreement = 0) {
    static_assert(std::is_trivially_copyable_v<Slot>);
    if (size() == 1) return status;  // its own slots are the joined ones
    Status first = gather_parts(operation, std::as_bytes(slots), std::as_bytes(sums), status, staging, traffic, agreement);
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

 protected:
  // Errors: UsageError for an all_gather whose `all` is not as long as size() parts.
  static void check_room(std::size_t part, std::size_t all, int ranks);

 private:
  Status gather_parts(std::string_view operation, std::span<const std::byte> slots, std::span<const std::byte> sums,
                      const Status& status, std::span<std::byte> staging, Traffic traffic, std::uint64_t agreement);
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

  // For a node with one join in its forward. In reserve: the staging, found again as c.workspace(of<std::byte>, k), and the
  // collective that a plan counts.
  template <class Slot>
  void reserve_join(auto& c, Of<Slot> /*type*/, Index slots, Index sums = 0) const {
    const auto payload = static_cast<std::size_t>(slots) * sizeof(Slot) + static_cast<std::size_t>(sums) * sizeof(double);
    c.workspace(of<std::byte>, static_cast<Index>(Communicator::staging_bytes(size(), payload)));
    c.collective(size() > 1 ? 1 : 0, 0, Communicator::joined_bytes(size(), payload));
  }
  // In forward: Communicator::join, or nothing in a group of one. Throws the first bad status of any rank, on every rank.
  template <class Slot>
  void join(std::string_view operation, std::span<Slot> slots, void (*fold)(Slot& into, const Slot& from),
            std::span<std::byte> staging, std::span<double> sums = {}, Status status = {},
            std::uint64_t agreement = 0) const {
    if (communicator_ != nullptr)
      status = communicator_->join(operation, slots, fold, sums, status, staging, Traffic::step, agreement);
    status.raise(size());
  }

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
