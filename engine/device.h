// SPDX-License-Identifier: Apache-2.0
// Where memory lives, and the mark of functions that run in both places.
#pragma once

// nvcc needs the mark on every function that a kernel calls; the language has no other way to say it.
#ifdef __CUDACC__
#define LOSSTAPE_HOST_DEVICE __host__ __device__
#else
#define LOSSTAPE_HOST_DEVICE
#endif

namespace losstape {

enum class Device : unsigned char { cpu, cuda };

[[nodiscard]] constexpr const char* name(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

}  // namespace losstape
