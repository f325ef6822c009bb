// SPDX-License-Identifier: Apache-2.0
// The repository's golden cases, over every layout, through the code of `losstape check`.
#include "cli/golden.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace losstape::cli {
namespace {

std::vector<std::string> golden_cases() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/golden")) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void run_all(const RunOptions& run, const std::string& part = {}) {
  Pool pool(run.threads);
  for (const std::string& path : golden_cases()) {
    if (path.find(part) == std::string::npos) continue;
    CAPTURE(path);
    const Verdict verdict = check_case(path, run, pool);
    CAPTURE(verdict.reason);
    CHECK(verdict.outcome == Outcome::passed);
  }
}

}  // namespace

TEST_SUITE("cli/golden") {
  TEST_CASE("there are cases of every kind, dtype and row family") {
    const std::vector<std::string> paths = golden_cases();
    for (const char* part : {"op-float64-",
                             "op-float32-",
                             "op-bfloat16-",
                             "op-float16-",
                             "-equal-",
                             "-masked-",
                             "-offset-",
                             "-peaked-",
                             "-plain-",
                             "-wide-",
                             "one_row",
                             "one_column",
                             "/nll-",
                             "packed-nll-",
                             "packed-grpo-",
                             "packed-dual_clip-",
                             "packed-sequence_mean-",
                             "pg-grpo-",
                             "pg-dapo-",
                             "pg-dual_clip-",
                             "pg-kl_k1-",
                             "pg-kl_k2-",
                             "pg-kl_in_reward-",
                             "pg-kl_on_policy-",
                             "pg-kl_tight_clamp-",
                             "pg-kl_unclamped-",
                             "pg-sequence_mean-"}) {
      CAPTURE(part);
      CHECK(std::any_of(paths.begin(), paths.end(),
                        [&](const std::string& path) { return path.find(part) != std::string::npos; }));
    }
  }

  TEST_CASE("every case passes over tensor-parallel sizes, chunk sizes and threads") {
    for (const int ranks : {1, 2, 3, 5}) {
      for (const Index chunk : {Index{1}, Index{7}, Index{0}}) {
        for (const int threads : {1, 2}) {
          const std::string layout = "tensor parallel " + std::to_string(ranks) + ", chunks of " + std::to_string(chunk) +
                                     ", threads " + std::to_string(threads);
          DOCTEST_SUBCASE(layout.c_str()) { run_all({ranks, chunk, threads, std::nullopt}); }
        }
      }
    }
  }

  TEST_CASE("shards may be empty: more ranks than columns") {
    run_all({64, 0, 2, std::nullopt}, "-tiny");
    run_all({64, 3, 1, std::nullopt}, "packed-");
  }

  TEST_CASE("a dtype that holds the logits changes no verdict, another skips the case and says so") {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      Pool pool(1);
      int passed = 0;
      for (const std::string& path : golden_cases()) {
        CAPTURE(path);
        const Verdict verdict = check_case(path, {2, 0, 1, dtype}, pool);
        CAPTURE(verdict.reason);
        CHECK(verdict.outcome != Outcome::failed);
        if (verdict.outcome == Outcome::passed) ++passed;
        if (verdict.outcome == Outcome::skipped) CHECK(verdict.reason.find("not exact in") != std::string::npos);
        if (dtype == DType::f64) CHECK(verdict.outcome == Outcome::passed);
      }
      CHECK(passed > 0);
    }
  }
}

}  // namespace losstape::cli
