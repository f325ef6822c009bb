// SPDX-License-Identifier: Apache-2.0
// `losstape check` on files that the test writes: right, wrong, refused, skipped.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
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

const std::string kPacked = "tests/data/golden/packed-grpo-1.safetensors";
const std::string kPadded = "tests/data/golden/pg-grpo-0.safetensors";
const std::string kNll = "tests/data/golden/nll-0.safetensors";
const std::string kOps = "tests/data/golden/op-float64-peaked-odd.safetensors";

// What check prints of one changed case, on two ranks.
Printed check(const CaseCopy& changed) {
  const TempFolder folder;
  return losstape({"check", changed.write(folder.file("case.safetensors")), "--tensor-parallel", "2"});
}

void fails_at(const CaseCopy& changed, const std::string& place) {
  const Printed printed = check(changed);
  CAPTURE(place);
  CAPTURE(printed.out);
  CHECK(printed.status == 1);
  CHECK(printed.last_line() == "0 passed, 1 failed");
  CHECK(printed.out.find("FAIL case.safetensors: " + place) != std::string::npos);
}

void refused_as_expected(CaseCopy changed, const std::string& text) {
  changed.metadata["expect_error"] = text;
  const Printed printed = check(changed);
  CAPTURE(printed.out);
  CHECK(printed.last_line() == "1 passed, 0 failed");
  // The same file, were it to be refused for another reason, or not at all.
  changed.metadata["expect_error"] = "because of the weather";
  CHECK(check(changed).out.find("expected a refusal with \"because of the weather\"") != std::string::npos);
  changed.metadata.erase("expect_error");
  CHECK(check(changed).status == 1);
}

}  // namespace

TEST_SUITE("cli/check") {
  TEST_CASE("a planted wrong value is found, with its tensor, index, values, error and tolerance") {
    for (const auto& [path, tensor, at, place] : std::vector<std::tuple<std::string, std::string, std::size_t, std::string>>{
             {kPacked, "loss", 0, "loss[0]"},
             {kPacked, "grad_logits", 5, "grad_logits[0, 5]"},
             {kPadded, "loss", 0, "loss[0]"},
             {kPadded, "grad_logprobs", 9, "grad_logprobs[1, 1]"},
             {kNll, "grad_logprobs", 0, "grad_logprobs[0, 0]"},
             {kOps, "logprob", 2, "logprob[2]"},
             {kOps, "entropy", 3, "entropy[3]"},
             {kOps, "lse", 4, "lse[4]"},
             {kOps, "topk_logprobs", 5, "topk_logprobs[1, 1]"},
             {kOps, "grad_logits_logprob", 131, "grad_logits_logprob[1, 0]"},
             {kOps, "grad_logits_entropy", 132, "grad_logits_entropy[1, 1]"},
             {kOps, "grad_logits_topk", 133, "grad_logits_topk[1, 2]"},
         }) {
      CAPTURE(path);
      CaseCopy changed(path);
      changed.element<double>(tensor, at) += 1e-8;
      fails_at(changed, tensor == "loss" ? "loss: got " : place + ": got ");
      changed.element<double>(tensor, at) = std::nan("");
      fails_at(changed, tensor == "loss" ? "loss: got " : place + ": got ");
    }
  }

  TEST_CASE("the tolerances are those of fp64 for f64 logits and of fp32 for others") {
    const std::string single = "tests/data/golden/op-float32-plain-tiny.safetensors";
    for (const auto& [path, within, beyond] :
         std::vector<std::tuple<std::string, double, double>>{{kOps, 5e-12, 1e-9}, {single, 1e-6, 1e-4}}) {
      CaseCopy changed(path);
      const double right = changed.element<double>("entropy", 0);
      changed.element<double>("entropy", 0) = right + within;
      CHECK(check(changed).status == 0);
      changed.element<double>("entropy", 0) = right + beyond;
      CHECK(check(changed).status == 1);
    }
  }

  TEST_CASE("a wrong metric, and one that is not there, fail by name") {
    CaseCopy changed(kPacked);
    Json metrics = parse_json(changed.metadata.at("metrics"), "metrics");
    metrics["probs_ratio_max"] = to_json(from_json_number(metrics["probs_ratio_max"]) + 1e-6);
    changed.metadata["metrics"] = metrics.dump();
    fails_at(changed, "metric probs_ratio_max: got ");
    changed.metadata["metrics"] = R"({"probs_ratio_of_tomorrow": 1})";
    fails_at(changed, "metric probs_ratio_of_tomorrow: got nan");
  }

  TEST_CASE("the worst element is named, and what else is wrong") {
    CaseCopy changed(kPacked);
    changed.element<double>("grad_logits", 7) += 1e-7;
    changed.element<double>("grad_logits", 70) += 1e-3;
    changed.element<double>("loss", 0) += 1e-8;
    fails_at(changed, "grad_logits[1, 9]: got ");
    CHECK(check(changed).out.find("also wrong: loss") != std::string::npos);
  }

  TEST_CASE("a case that expects nothing does not pass") {
    CaseCopy changed(kPacked);
    changed.erase("grad_logits");
    changed.erase("loss");
    changed.metadata.erase("metrics");
    const Printed printed = check(changed);
    CHECK(printed.status == 1);
    CHECK((printed.out + printed.err).find("an expected value: loss, grad_logits, grad_logprobs, or metrics") !=
          std::string::npos);
  }

  TEST_CASE("what a case does not expect is not compared") {
    CaseCopy changed(kPacked);
    changed.erase("grad_logits");
    changed.erase("loss");
    changed.metadata["of another day"] = "ignored";
    CHECK(check(changed).status == 0);
    CaseCopy ops(kOps);
    for (const char* name :
         {"topk_indices", "topk_logprobs", "grad_out_topk", "grad_logits_topk", "grad_out_entropy", "lse"}) {
      ops.erase(name);
    }
    CHECK(check(ops).status == 0);
  }

  TEST_CASE("counts that the metadata lacks are the batch's own") {
    // Seeds of the masks of this case: its own counts are those that its metadata has, or the values would differ.
    CaseCopy changed(kNll);
    REQUIRE(changed.metadata.at("global_valid_toks") == "13.0");
    changed.metadata.erase("global_valid_toks");
    changed.metadata.erase("global_valid_seqs");
    CHECK(check(changed).status == 0);
  }

  TEST_CASE("a refusal that a case expects is a pass: on every rank, with its words in any case, nothing written") {
    CaseCopy label(kPacked);
    label.element<std::int64_t>("input_ids", 3) = 61;
    refused_as_expected(label, "INPUT_IDS 61");
    CaseCopy negative(kOps);
    negative.element<std::int64_t>("targets", 1) = -1;
    refused_as_expected(negative, "targets -1");
    CaseCopy offsets(kPacked);
    offsets.element<std::int32_t>("cu_seqlens", 2) = 2;
    refused_as_expected(offsets, "cu_seqlens");
    CaseCopy temperature(kOps);
    temperature.metadata["temperature"] = "0";
    refused_as_expected(temperature, "temperature");
    CaseCopy clip(kPadded);
    clip.metadata["config"] = R"({"ratio_clip_c": 0.5})";
    refused_as_expected(clip, "ratio_clip_c");
    CaseCopy logits(kPacked);
    REQUIRE(logits.element<double>("token_mask", 6) == 1);
    logits.element<double>("logits", 5 * 61 + 8) = std::nan("");
    refused_as_expected(logits, "row 5");
    CaseCopy missing(kPacked);
    missing.erase("advantages");
    refused_as_expected(missing, "advantages");
  }

  TEST_CASE("a case that expects a refusal and is not refused has failed") {
    for (const std::string& path : {kPacked, kPadded, kOps}) {
      CaseCopy sound(path);
      sound.metadata["expect_error"] = "anything";
      fails_at(sound, "expected a refusal with \"anything\", but it went through");
    }
  }

  TEST_CASE("kinds and configurations of later versions are skipped, named and counted") {
    const TempFolder folder;
    CaseCopy kind(kPacked);
    kind.metadata["kind"] = "packed_dpo";
    kind.write(folder.file("a.safetensors"));
    CaseCopy config(kPadded);
    config.metadata["config"] = R"({"use_cispo": true})";
    config.write(folder.file("b.safetensors"));
    CaseCopy none(kPadded);
    none.metadata.erase("kind");
    none.write(folder.file("c.safetensors"));
    std::filesystem::copy_file(kNll, folder.file("d.safetensors"));
    std::filesystem::copy_file("README.md", folder.file("e.txt"));
    const Printed printed = losstape({"check", folder.path().string()});
    CHECK(printed.status == 0);
    CHECK(printed.out.find("skip a.safetensors: kind packed_dpo") != std::string::npos);
    CHECK(printed.out.find("skip b.safetensors: use_cispo true") != std::string::npos);
    CHECK(printed.out.find("skip c.safetensors: it has no kind") != std::string::npos);
    CHECK(printed.last_line() == "1 passed, 0 failed, 3 skipped");
  }

  TEST_CASE("a file that cannot be read has failed, and the others are still checked") {
    const TempFolder folder;
    const std::string torn = folder.write("torn.safetensors", testing::read_file(kNll).substr(0, 2000));
    const Printed printed = losstape({"check", folder.file("absent"), torn, kNll, kPadded});
    CHECK(printed.status == 1);
    CHECK(printed.out.find("FAIL absent: ") != std::string::npos);
    CHECK(printed.out.find("FAIL torn.safetensors: ") != std::string::npos);
    CHECK(printed.last_line() == "2 passed, 2 failed");
  }

  TEST_CASE("a folder without cases is an error") {
    const TempFolder folder;
    const Printed printed = losstape({"check", folder.path().string()});
    CHECK(printed.status == 1);
    CHECK(printed.out.empty());
    CHECK(printed.err.find("*.safetensors") != std::string::npos);
  }

  TEST_CASE("with --json standard output is one object") {
    const TempFolder folder;
    CaseCopy changed(kPacked);
    changed.element<double>("grad_logits", 6) = HUGE_VAL;
    const std::string path = changed.write(folder.file("wrong.safetensors"));
    CaseCopy later(kPadded);
    later.metadata["config"] = R"({"use_cispo": true})";
    const Printed printed =
        losstape({"check", path, kNll, later.write(folder.file("later.safetensors")), "--json", "--threads", "1"});
    CHECK(printed.status == 1);
    const Json report = printed.json();
    CHECK(report.size() == 4);
    CHECK(report["passed"] == 1);
    CHECK(report["failed"] == 1);
    CHECK(report["skipped"] == 1);
    REQUIRE(report["failures"].size() == 1);
    const Json& failure = report["failures"][0];
    CHECK(failure["file"] == path);
    CHECK(failure["tensor"] == "grad_logits");
    CHECK(failure["index"] == Json{0, 6});
    CHECK(failure["want"] == "inf");
    CHECK(failure["error"] == "inf");
    CHECK(failure["got"].is_number());
    CHECK(failure["tolerance"].is_number());
    CHECK(printed.err.find("skip later.safetensors") != std::string::npos);
  }

  TEST_CASE("the [B, S] kinds pass in fp32 too") {
    CHECK(losstape({"check", kPadded, kNll, "--dtype", "f32"}).status == 0);
    CaseCopy changed(kPadded);
    changed.element<double>("loss", 0) += 1e-7;
    const TempFolder folder;
    const std::string path = changed.write(folder.file("case.safetensors"));
    CHECK(losstape({"check", path, "--dtype", "f32"}).status == 0);
    CHECK(losstape({"check", path}).status == 1);
  }
}

}  // namespace losstape
