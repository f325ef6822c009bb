// SPDX-License-Identifier: Apache-2.0
// `losstape loss`: its table, its JSON, its files, its exit status; and that layouts change nothing.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/cli/case_copy.h"
#include "tests/cli/program_run.h"
#include "tests/support/temp_file.h"

namespace losstape {
namespace {

using testing::CaseCopy;
using testing::losstape;
using testing::Printed;
using testing::TempFolder;

const std::string kBatch = "tests/data/grpo_batch.safetensors";
const std::string kPacked = "tests/data/golden/packed-grpo-1.safetensors";
const std::string kNll = "tests/data/golden/packed-nll-0.safetensors";

Json loss_json(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "loss");
  arguments.emplace_back("--json");
  const Printed printed = losstape(arguments);
  CAPTURE(printed.err);
  REQUIRE(printed.status == 0);
  CHECK(printed.err.empty());
  return printed.json();
}

std::set<std::string> keys(const Json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

// Standard output stays empty, standard error says why.
void fails(const std::vector<std::string>& arguments, int status, const std::string& words) {
  const Printed printed = losstape(arguments);
  CAPTURE(words);
  CAPTURE(printed.err);
  CHECK(printed.status == status);
  CHECK(printed.out.empty());
  CHECK(printed.err.find(words) != std::string::npos);
}

}  // namespace

TEST_SUITE("cli/loss") {
  TEST_CASE("a gradient never replaces the batch that it is of") {
    const TempFolder folder;
    const std::string batch = folder.file("batch.safetensors");
    std::filesystem::copy_file(kPacked, batch);
    const std::string link = folder.file("link.safetensors");
    std::filesystem::create_symlink(batch, link);
    for (const std::string& out : {batch, link}) fails({"loss", batch, "--gradient", out}, 2, "would replace the batch");
    CHECK(losstape({"loss", batch}).status == 0);
  }

  TEST_CASE("a configuration is read from ordinary files alone") {
    fails({"loss", kPacked, "--config", "@/dev/zero"}, 2, "is no file");
    fails({"loss", kPacked, "--config", "@tests"}, 2, "is no file");
  }

  TEST_CASE("the JSON has the keys that are promised, and the values of the golden case") {
    const Json report = loss_json({kPacked, "--tensor-parallel", "2", "--check-gradient"});
    CHECK(keys(report) ==
          std::set<std::string>{"loss", "metrics", "gradient_norm", "memory", "collectives", "seconds", "gradient_check"});
    CHECK(keys(report["memory"]) == std::set<std::string>{"logits", "slices", "saved", "workspace"});
    CHECK(keys(report["collectives"]) == std::set<std::string>{"forward", "backward", "bytes"});
    CHECK(keys(report["seconds"]) == std::set<std::string>{"forward", "backward"});
    CHECK(keys(report["gradient_check"]) == std::set<std::string>{"worst_relative_error", "checked", "skipped_kinks"});
    const SafetensorsFile file(kPacked);
    CHECK(report["loss"].get<double>() == doctest::Approx(file.view("loss").get<double>(0)).epsilon(1e-9));
    const Json metrics = parse_json(file.metadata().at("metrics"), "metrics");
    CHECK(keys(report["metrics"]) == keys(metrics));
    double squares = 0;
    const View gradient = file.view("grad_logits");
    for (Index r = 0; r < gradient.rows; ++r) {
      for (Index c = 0; c < gradient.cols; ++c) squares += gradient.get<double>(r, c) * gradient.get<double>(r, c);
    }
    CHECK(report["gradient_norm"].get<double>() == doctest::Approx(std::sqrt(squares)).epsilon(1e-9));
    // 31 of 61 columns on the first rank, 28 rows, fp64.
    CHECK(report["memory"]["logits"] == 28 * 31 * 8);
    CHECK(report["memory"]["slices"] == 28 * 31 * 8);
    CHECK(report["memory"]["saved"].get<int>() > 0);
    CHECK(report["collectives"]["forward"] == 1);
    CHECK(report["collectives"]["backward"] == 0);
    CHECK(report["collectives"]["bytes"].get<int>() >= 28 * 32);
    CHECK(report["gradient_check"]["worst_relative_error"].get<double>() < 1e-7);
    CHECK(report["gradient_check"]["checked"].get<int>() > 16);
  }

  TEST_CASE("a group of one has no collectives") {
    CHECK(loss_json({kPacked})["collectives"].dump() == R"({"forward":0,"backward":0,"bytes":0})");
  }

  TEST_CASE("threads and chunks change no bit of the loss, tensor-parallel sizes no more than rounding") {
    const Json base = loss_json({kBatch, "--threads", "1"});
    for (const char* chunk : {"1", "7", "184", "100000"}) {
      for (const char* threads : {"1", "2", "3"}) {
        const Json other = loss_json({kBatch, "--threads", threads, "--chunk-rows", chunk});
        CHECK(other["loss"].dump() == base["loss"].dump());
        CHECK(other["metrics"].dump() == base["metrics"].dump());
        CHECK(other["gradient_norm"].dump() == base["gradient_norm"].dump());
      }
    }
    for (const char* ranks : {"2", "3", "5"}) {
      const Json other = loss_json({kBatch, "--tensor-parallel", ranks, "--chunk-rows", "7"});
      CHECK(other["loss"].get<double>() == doctest::Approx(base["loss"].get<double>()).epsilon(1e-5));
      CHECK(other["gradient_norm"].get<double>() == doctest::Approx(base["gradient_norm"].get<double>()).epsilon(1e-6));
    }
  }

  TEST_CASE("--gradient writes what the golden case expects, the shards joined, in the slices' dtype") {
    const TempFolder folder;
    const std::string out = folder.file("gradient.safetensors");
    for (const char* ranks : {"1", "2", "3", "70"}) {
      static_cast<void>(loss_json({kPacked, "--tensor-parallel", ranks, "--gradient", out}));
      const SafetensorsFile written(out);
      const SafetensorsFile golden(kPacked);
      CHECK(written.names() == std::vector<std::string>{"grad_logits"});
      CHECK(written.shape("grad_logits") == golden.shape("grad_logits"));
      const View got = written.view("grad_logits");
      const View want = golden.view("grad_logits");
      CHECK(got.dtype == DType::f64);
      double worst = 0;
      for (Index r = 0; r < want.rows; ++r) {
        for (Index c = 0; c < want.cols; ++c) {
          worst = std::max(worst, std::abs(got.get<double>(r, c) - want.get<double>(r, c)));
        }
      }
      CHECK(worst < 1e-11);
    }
    static_cast<void>(loss_json({kBatch, "--tensor-parallel", "2", "--gradient", out}));
    CHECK(SafetensorsFile(out).view("grad_logits").dtype == DType::f32);
  }

  TEST_CASE("the file's kind and config are used unless --loss or --config say otherwise") {
    const double nll = loss_json({kNll})["loss"].get<double>();
    CHECK(nll == doctest::Approx(SafetensorsFile(kNll).view("loss").get<double>(0)).epsilon(1e-9));
    CHECK(keys(loss_json({kNll})["metrics"]).contains("num_unmasked_tokens"));
    const double grpo = loss_json({kPacked})["loss"].get<double>();
    CHECK(loss_json({kPacked, "--loss", "nll"})["loss"].get<double>() != grpo);
    CHECK(loss_json({kPacked, "--loss", "grpo"})["loss"].get<double>() == grpo);
    const double dapo = loss_json({kPacked, "--loss", "dapo"})["loss"].get<double>();
    CHECK(dapo != grpo);
    const std::string config = R"({"ratio_clip_max": 0.28, "reference_policy_kl_penalty": 0})";
    CHECK(loss_json({kPacked, "--config", config})["loss"].get<double>() == dapo);
    CHECK(loss_json({kPacked, "--loss", "grpo", "--config", config})["loss"].get<double>() == dapo);
    const TempFolder folder;
    CHECK(loss_json({kPacked, "--config", "@" + folder.write("config.json", config)})["loss"].get<double>() == dapo);
    CaseCopy with_config(kPacked);
    with_config.metadata["config"] = config;
    const std::string path = with_config.write(folder.file("dapo.safetensors"));
    CHECK(loss_json({path})["loss"].get<double>() == dapo);
    CHECK(loss_json({path, "--loss", "clipped_policy_gradient"})["loss"].get<double>() == dapo);
    CHECK(loss_json({path, "--loss", "grpo"})["loss"].get<double>() == grpo);
    CHECK(loss_json({path, "--config", "{}"})["loss"].get<double>() == grpo);
    CHECK(loss_json({path, "--loss", "nll"})["loss"].get<double>() ==
          loss_json({kPacked, "--loss", "nll"})["loss"].get<double>());
  }

  TEST_CASE("a batch without kind, config or counts is a clipped policy gradient with its own counts") {
    const TempFolder folder;
    CaseCopy bare(kBatch);
    const Json counted = loss_json({kBatch});
    bare.metadata.clear();
    CHECK(loss_json({bare.write(folder.file("bare.safetensors"))})["loss"].dump() == counted["loss"].dump());
    // Without padded offsets rows follow cu_seqlens; without the other columns the loss says what it lacks.
    bare.erase("advantages");
    fails({"loss", bare.write(folder.file("bare.safetensors"))}, 1, "advantages");
    CHECK(loss_json({folder.file("bare.safetensors"), "--loss", "nll"})["loss"].get<double>() > 0);
  }

  TEST_CASE("--dtype rounds the logits first, and f64 computes in fp64") {
    const Json single = loss_json({kBatch});
    const Json wide = loss_json({kBatch, "--dtype", "f64"});
    CHECK(wide["memory"]["slices"] == 2 * single["memory"]["slices"].get<int>());
    CHECK(wide["loss"].get<double>() == doctest::Approx(single["loss"].get<double>()).epsilon(1e-5));
    CHECK(loss_json({kBatch, "--dtype", "bf16"})["loss"].dump() == single["loss"].dump());
    CHECK(loss_json({kBatch, "--dtype", "f32"})["loss"].dump() == single["loss"].dump());
    CHECK(loss_json({kPacked, "--dtype", "bf16"})["loss"].dump() != loss_json({kPacked})["loss"].dump());
  }

  TEST_CASE("the table names what a newcomer looks for and fits 80 columns") {
    const Printed printed = losstape({"loss", kBatch, "--tensor-parallel", "2", "--check-gradient"});
    CHECK(printed.status == 0);
    for (const char* part : {"grpo_batch.safetensors", "4 sequences", "2 ranks", "loss", "kl_penalty", "norm",
                             "finite differences", "logits", "slices", "saved", "workspace", "collectives", "backward"}) {
      CHECK(printed.out.find(part) != std::string::npos);
    }
    std::size_t begin = 0;
    while (begin < printed.out.size()) {
      const std::size_t end = printed.out.find('\n', begin);
      CHECK(end - begin <= 82);  // in bytes: a character or two are longer
      begin = end + 1;
    }
  }

  TEST_CASE("a newcomer's mistakes get words that help, and nothing on standard output") {
    const TempFolder folder;
    fails({"loss", folder.file("absent")}, 1, "absent: No such file");
    fails({"loss", folder.path().string()}, 1, "Is a directory");
    fails({"loss", "README.md"}, 1, "README.md");
    fails({"loss", kBatch, "--tensor-parallel", "0"}, 2, "between 1 and 256");
    fails({"loss", kBatch, "--tensor-parallel", "1000"}, 2, "between 1 and 256");
    fails({"loss", kBatch, "--config", "{"}, 2, "JSON");
    fails({"loss", kBatch, "--config", "@" + folder.file("absent")}, 2, "absent");
    fails({"loss", kBatch, "--config", R"({"ratio_clip": 1})"}, 2, "did you mean ratio_clip_c?");
    fails({"loss", kBatch, "--config", R"({"use_cispo": true})"}, 2, "not in this version yet");
    fails({"loss", kBatch, "--loss", "dpo"}, 2, "not in this version yet");
    fails({"loss", kBatch, "--loss", "gpro"}, 2, "did you mean grpo?");
    fails({"loss", kBatch, "--gradient", folder.file("no/such/folder")}, 1, "no/such/folder");
    fails({"loss", "tests/data/golden/pg-grpo-0.safetensors"}, 1, "losstape check");
    fails({"loss", "tests/data/golden/op-float64-wide-tiny.safetensors"}, 1, "vocab_ops");
    CaseCopy config(kPacked);
    config.metadata["config"] = R"({"ratio_clip_mx": 1})";
    fails({"loss", config.write(folder.file("c.safetensors"))}, 1, "did you mean ratio_clip_max?");
    config.metadata["config"] = "{";
    fails({"loss", config.write(folder.file("c.safetensors"))}, 1, "metadata config of");
    config.metadata["config"] = "{}";
    config.metadata["global_valid_toks"] = "many";
    fails({"loss", config.write(folder.file("c.safetensors"))}, 1, "global_valid_toks");
  }

  TEST_CASE("a tensor that is missing or has another shape or dtype is named") {
    const TempFolder folder;
    const std::string path = folder.file("case.safetensors");
    for (const char* name : {"logits", "input_ids", "cu_seqlens", "token_mask", "advantages", "prev_logprobs"}) {
      CaseCopy missing(kPacked);
      missing.erase(name);
      fails({"loss", missing.write(path)}, 1, name);
    }
    for (const char* name :
         {"input_ids", "token_mask", "advantages", "prev_logprobs", "generation_logprobs", "reference_policy_logprobs"}) {
      CaseCopy short_one(kPacked);
      short_one.reshape(name, {27});
      fails({"loss", short_one.write(path)}, 1, std::string(name) + ": expected a tensor of shape [28], found [27]");
    }
    CaseCopy flat(kPacked);
    flat.reshape("logits", {28 * 61});
    fails({"loss", flat.write(path)}, 1, "logits: expected a tensor of shape [any, any]");
    CaseCopy samples(kPacked);
    samples.reshape("sample_mask", {3});
    fails({"loss", samples.write(path)}, 1, "sample_mask");
    CaseCopy padded(kPacked);
    padded.reshape("cu_seqlens_padded", {4});
    fails({"loss", padded.write(path)}, 1, "cu_seqlens_padded");
    CaseCopy floats(kPacked);
    floats.erase("input_ids");
    floats.rename("token_mask", "input_ids");
    fails({"loss", floats.write(path)}, 1, "input_ids: expected i32 or i64, found f64");
  }

  TEST_CASE("a batch without a single row has a loss of 0") {
    const TempFolder folder;
    CaseCopy none(kPacked);
    for (const char* name :
         {"input_ids", "token_mask", "advantages", "prev_logprobs", "generation_logprobs", "reference_policy_logprobs"}) {
      none.reshape(name, {0});
    }
    none.reshape("logits", {0, 61});
    none.erase("cu_seqlens_padded");
    none.reshape("cu_seqlens", {1});
    none.reshape("sample_mask", {0});
    const std::string path = none.write(folder.file("none.safetensors"));
    for (const char* ranks : {"1", "3"}) CHECK(loss_json({path, "--tensor-parallel", ranks})["loss"] == 0.0);
  }

  TEST_CASE("bad data is refused over several ranks as on one") {
    const TempFolder folder;
    CaseCopy label(kPacked);
    label.element<std::int64_t>("input_ids", 3) = 4242;
    const std::string path = label.write(folder.file("label.safetensors"));
    for (const char* ranks : {"1", "3"}) {
      fails({"loss", path, "--tensor-parallel", ranks, "--json"}, 1, "4242");
      fails({"loss", path, "--tensor-parallel", ranks, "--check-gradient"}, 1, "4242");
    }
  }
}

}  // namespace losstape
