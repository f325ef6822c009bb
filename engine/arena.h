// SPDX-License-Identifier: Apache-2.0
// Bump allocation for everything a tape holds: 64-byte pieces, marks to rewind to, and exact counts by purpose.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

#include "engine/dtype.h"

namespace losstape {

// What a piece of an arena is for; each purpose is counted apart.
enum class Purpose : unsigned char { saved, columns, nodes, workspace };
inline constexpr std::size_t kPurposes = 4;

// Contiguous row-major memory of an arena, [rows, cols].
template <class T>
struct Block {
  T* data = nullptr;
  Index rows = 0;
  Index cols = 0;

  [[nodiscard]] T& operator()(Index r, Index c = 0) const { return data[r * cols + c]; }
  [[nodiscard]] Index size() const { return rows * cols; }
  [[nodiscard]] std::span<T> span() const { return {data, static_cast<std::size_t>(size())}; }
};

// One growing stack of memory. clear() keeps the memory, in one piece, so a step no larger than an earlier one allocates
// nothing. Not thread-safe: an arena belongs to one tape.
class Arena {
 public:
  static constexpr std::size_t kPiece = 64;  // pieces start and end on cache lines, and suit every vector width

  struct Mark {
    std::size_t block = 0;
    std::size_t used = 0;
    std::array<std::size_t, kPurposes> held{};
  };

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  Arena(Arena&&) = default;
  Arena& operator=(Arena&&) = default;
  ~Arena() = default;

  // Uninitialised memory, a multiple of 64 bytes. Errors: UsageError where the size overflows; std::bad_alloc.
  [[nodiscard]] void* allocate(std::size_t count, std::size_t element_size, Purpose purpose);

  template <class T>
  [[nodiscard]] Block<T> allocate(Index rows, Index cols, Purpose purpose) {
    static_assert(std::is_trivially_copyable_v<T>, "an arena runs no constructors");
    return {static_cast<T*>(allocate(area(rows, cols), sizeof(T), purpose)), rows, cols};
  }

  [[nodiscard]] Mark mark() const;
  void rewind(const Mark& mark);
  void clear();

  // Bytes in use for a purpose now, and the most in use at once, all purposes together or of one.
  [[nodiscard]] std::size_t held(Purpose purpose) const { return held_[static_cast<std::size_t>(purpose)]; }
  [[nodiscard]] std::size_t peak(Purpose purpose) const { return peak_[static_cast<std::size_t>(purpose)]; }
  [[nodiscard]] std::size_t peak() const { return peak_all_; }
  // Bytes obtained from the system.
  [[nodiscard]] std::size_t capacity() const;

 private:
  struct Release {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{kPiece}); }
  };
  struct Chunk {
    std::unique_ptr<std::byte[], Release> memory;
    std::size_t capacity = 0;
  };

  static std::size_t area(Index rows, Index cols);
  void add_chunk(std::size_t at_least);

  std::vector<Chunk> chunks_;
  std::size_t current_ = 0;  // chunk that is being filled
  std::size_t used_ = 0;     // bytes used of it
  std::array<std::size_t, kPurposes> held_{};
  std::array<std::size_t, kPurposes> peak_{};
  std::size_t held_all_ = 0;
  std::size_t peak_all_ = 0;
};

// A list that only grows, kept in an arena: segments double, so an element never moves and its address stays good.
template <class T>
class ArenaList {
 public:
  explicit ArenaList(Arena& arena) : arena_(&arena) {}

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] T& operator[](std::size_t i) const {
    const std::size_t segment = segment_of(i);
    return segments_[segment][i + kFirst - (kFirst << segment)];
  }
  T& push(const T& value) {
    static_assert(std::is_trivially_destructible_v<T>, "an arena runs no destructors");
    const std::size_t segment = segment_of(size_);
    if (segments_[segment] == nullptr) {
      segments_[segment] = static_cast<T*>(arena_->allocate(kFirst << segment, sizeof(T), Purpose::nodes));
    }
    T& place = segments_[segment][size_ + kFirst - (kFirst << segment)];
    std::construct_at(&place, value);
    ++size_;
    return place;
  }
  // Forgets elements from `size` on, and the segments that were allocated for them alone: the arena rewinds with them.
  void truncate(std::size_t size) {
    const std::size_t keep = size == 0 ? 0 : segment_of(size - 1) + 1;
    for (std::size_t s = keep; s < segments_.size(); ++s) segments_[s] = nullptr;
    size_ = size;
  }

 private:
  static constexpr std::size_t kFirst = 16;
  static constexpr std::size_t segment_of(std::size_t i) {
    return static_cast<std::size_t>(std::bit_width(i / kFirst + 1)) - 1;
  }

  Arena* arena_;
  std::array<T*, 28> segments_{};
  std::size_t size_ = 0;
};

}  // namespace losstape
