// SPDX-License-Identifier: Apache-2.0
// The arena's growth and its counts.
#include "engine/arena.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/error.h"

namespace losstape {
namespace {

constexpr std::size_t kSmallestChunk = std::size_t{64} << 10U;

[[noreturn]] void refuse_size(const std::string& found) {
  throw UsageError({"arena", "a size in bytes that fits the address space", found});
}

}  // namespace

std::size_t Arena::area(Index rows, Index cols) {
  Index area = 0;
  if (rows < 0 || cols < 0 || __builtin_mul_overflow(rows, cols, &area)) {
    refuse_size("[" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
  }
  return static_cast<std::size_t>(area);
}

void* Arena::allocate(std::size_t count, std::size_t element_size, Purpose purpose) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, element_size, &bytes) || bytes > (std::size_t{1} << 62U)) {
    refuse_size(std::to_string(count) + " elements of " + std::to_string(element_size) + " bytes");
  }
  bytes = (bytes + kPiece - 1) / kPiece * kPiece;
  if (chunks_.empty()) add_chunk(bytes);
  while (chunks_[current_].capacity - used_ < bytes) {
    if (current_ + 1 == chunks_.size()) add_chunk(bytes);
    ++current_;
    used_ = 0;
  }
  void* piece = chunks_[current_].memory.get() + used_;
  used_ += bytes;
  const auto which = static_cast<std::size_t>(purpose);
  held_[which] += bytes;
  held_all_ += bytes;
  peak_[which] = std::max(peak_[which], held_[which]);
  peak_all_ = std::max(peak_all_, held_all_);
  return piece;
}

Arena::Mark Arena::mark() const { return {current_, used_, held_}; }

void Arena::rewind(const Mark& mark) {
  current_ = mark.block;
  used_ = mark.used;
  held_ = mark.held;
  held_all_ = 0;
  for (const std::size_t bytes : held_) held_all_ += bytes;
}

void Arena::clear() {
  rewind({});
  if (chunks_.size() <= 1) return;
  // One chunk of the most that was held at once: a bump allocator without a seam needs no more for the same step.
  chunks_.clear();
  add_chunk(peak_all_);
}

std::size_t Arena::capacity() const {
  std::size_t sum = 0;
  for (const Chunk& chunk : chunks_) sum += chunk.capacity;
  return sum;
}

void Arena::add_chunk(std::size_t at_least) {
  const std::size_t bytes = std::max({at_least, kSmallestChunk, chunks_.empty() ? 0 : 2 * chunks_.back().capacity});
  Chunk chunk;
  chunk.memory.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kPiece})));
  chunk.capacity = bytes;
  chunks_.push_back(std::move(chunk));
}

}  // namespace losstape
