// SPDX-License-Identifier: Apache-2.0
// The shared options' names, bounds and help.
#include "cli/run_options.h"

#include <limits>

namespace losstape::cli {

void RunArguments::declare(Arguments& arguments) {
  arguments.integer("--tensor-parallel", tensor_parallel_, 1, 256,
                    "shard the vocabulary over N ranks, threads of this process (1)");
  arguments.integer("--chunk-rows", chunk_rows_, 0, std::numeric_limits<Index>::max(),
                    "rows whose gradient is written before the next are begun; 0: all (0)");
  arguments.integer("--threads", threads_, 0, 1024, "threads that share the rows; 0: one per hardware thread (0)");
  arguments.choice("--dtype", dtype_, {"f64", "f32", "bf16", "f16"}, {},
                   "round the logits to this first; f64 computes in fp64 (the file's)");
  arguments.choice("--communicator", communicator_, {"threads"}, {"mpi", "nccl"}, "what connects the ranks");
  arguments.choice("--device", device_, {"cpu"}, {"cuda"}, "where to compute");
  arguments.choice("--from", from_, {"logits"}, {"hidden"}, "from which tensor to start");
  arguments.later({"--context-parallel", "--in-place"});
}

RunOptions RunArguments::options() const {
  RunOptions options{static_cast<int>(tensor_parallel_), chunk_rows_, static_cast<int>(threads_), std::nullopt};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    if (dtype_ == name(dtype)) options.dtype = dtype;
  }
  return options;
}

}  // namespace losstape::cli
