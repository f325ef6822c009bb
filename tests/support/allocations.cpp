// SPDX-License-Identifier: Apache-2.0
// The global hooks. A program that asks for the count links this file, and with it these replacements.
#include "tests/support/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LOSSTAPE_COUNT_MALLOC 1
#endif

namespace {

std::atomic<std::size_t> calls{0};

void count() { calls.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::size_t losstape::testing::allocations() { return calls.load(std::memory_order_relaxed); }

#ifdef LOSSTAPE_COUNT_MALLOC
// glibc's own names for what the functions below replace. The sanitizers have replaced them already.
extern "C" {
void* __libc_malloc(std::size_t size);                           // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(std::size_t number, std::size_t size);       // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* memory, std::size_t size);            // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(std::size_t alignment, std::size_t size);  // NOLINT(bugprone-reserved-identifier)

void* malloc(std::size_t size) noexcept {
  count();
  return __libc_malloc(size);
}
void* calloc(std::size_t number, std::size_t size) noexcept {
  count();
  return __libc_calloc(number, size);
}
void* realloc(void* memory, std::size_t size) noexcept {
  count();
  return __libc_realloc(memory, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  count();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) noexcept {
  count();
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? 12 : 0;  // ENOMEM
}
}
#endif

namespace {

void* obtain(std::size_t size, std::size_t alignment) {
#ifndef LOSSTAPE_COUNT_MALLOC
  count();  // elsewhere the C functions count
#endif
  void* memory = nullptr;
  if (alignment == 0) {
    memory = std::malloc(size == 0 ? 1 : size);
  } else {
    memory = std::aligned_alloc(alignment, (size + alignment) / alignment * alignment);
  }
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return obtain(size, 0); }
void* operator new[](std::size_t size) { return obtain(size, 0); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return obtain(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return obtain(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
