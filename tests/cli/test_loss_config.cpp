// SPDX-License-Identifier: Apache-2.0
// Every configuration key both ways: what it sets, what switches it off, and what is refused.
#include "cli/loss_config.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/error.h"

namespace losstape::cli {
namespace {

PolicyLossOptions options(const std::string& config) {
  return configured({}, parse_json(config, "the test"), "the test").policy;
}

std::string refusal(const std::string& config, LossKind kind = LossKind::clipped_policy_gradient) {
  try {
    static_cast<void>(configured({kind, {}}, parse_json(config, "the test"), "the test"));
  } catch (const DataError& error) {
    return error.what();
  }
  return "no refusal";
}

std::string unsupported(const std::string& config) {
  try {
    static_cast<void>(options(config));
  } catch (const Unsupported& error) {
    return error.what();
  }
  return "supported";
}

}  // namespace

TEST_SUITE("cli/loss_config") {
  TEST_CASE("without keys the options are the peers' defaults") {
    const PolicyLossOptions o = options("{}");
    CHECK(o.clip_low == 0.2);
    CHECK(o.clip_high == 0.2);
    CHECK(o.dual_clip == 0);
    CHECK(o.kl_penalty == 0.01);
    CHECK(o.kl_estimator == KlEstimator::k3);
    CHECK(o.kl_clamps.bounds_input);
    CHECK(o.kl_clamps.input == 20);
    CHECK(o.kl_clamps.bounds_output);
    CHECK(o.kl_clamps.output == 10);
    CHECK(o.kl_weight == KlWeight::score_function);
    CHECK(o.level == LossLevel::token);
  }

  TEST_CASE("each key sets its option, and its other value sets it back") {
    CHECK(options(R"({"ratio_clip_min": 0.1})").clip_low == 0.1);
    CHECK(options(R"({"ratio_clip_max": 0.28})").clip_high == 0.28);
    CHECK(options(R"({"ratio_clip_c": 3})").dual_clip == 3);
    CHECK(options(R"({"ratio_clip_c": null})").dual_clip == 0);
    CHECK(options(R"({"reference_policy_kl_penalty": 0.5})").kl_penalty == 0.5);
    CHECK(options(R"({"reference_policy_kl_penalty": null})").kl_penalty == 0);
    CHECK(options(R"({"reference_policy_kl_type": "k1"})").kl_estimator == KlEstimator::k1);
    CHECK(options(R"({"reference_policy_kl_type": "k2"})").kl_estimator == KlEstimator::k2);
    CHECK(options(R"({"reference_policy_kl_type": "k3"})").kl_estimator == KlEstimator::k3);
    CHECK(options(R"({"kl_input_clamp_value": 1.5})").kl_clamps.input == 1.5);
    CHECK_FALSE(options(R"({"kl_input_clamp_value": null})").kl_clamps.bounds_input);
    CHECK(options(R"({"kl_output_clamp_value": 0.4})").kl_clamps.output == 0.4);
    CHECK_FALSE(options(R"({"kl_output_clamp_value": null})").kl_clamps.bounds_output);
    CHECK(options(R"({"use_on_policy_kl_approximation": true})").kl_weight == KlWeight::on_policy);
    CHECK(options(R"({"use_on_policy_kl_approximation": false})").kl_weight == KlWeight::score_function);
    CHECK(options(R"({"token_level_loss": false})").level == LossLevel::sequence);
    CHECK(options(R"({"token_level_loss": true})").level == LossLevel::token);
    CHECK(options(R"({"use_kl_in_reward": true})").kl_penalty == 0);
    CHECK(options(R"({"use_kl_in_reward": false})").kl_penalty == 0.01);
  }

  TEST_CASE("use_kl_in_reward switches the penalty off wherever it stands") {
    CHECK(options(R"({"use_kl_in_reward": true, "reference_policy_kl_penalty": 0.5})").kl_penalty == 0);
    CHECK(options(R"({"reference_policy_kl_penalty": 0.5, "use_kl_in_reward": true})").kl_penalty == 0);
  }

  TEST_CASE("keys of later versions are named where they are on, and taken where they are off") {
    const std::vector<std::string> on{
        R"({"disable_ppo_ratio": true})",
        R"({"force_on_policy_ratio": true})",
        R"({"sequence_level_importance_ratios": true})",
        R"({"use_importance_sampling_correction": true})",
        R"({"truncated_importance_sampling_type": "tis"})",
        R"({"truncated_importance_sampling_type": "icepop"})",
        R"({"truncated_importance_sampling_type": "seq-mask-tis"})",
        R"({"truncated_importance_sampling_ratio": 2.0})",
        R"({"truncated_importance_sampling_ratio_min": 0.5})",
        R"({"use_cispo": true})",
        R"({"positive_example_nll_weight": 0.1})",
    };
    for (const std::string& config : on) {
      CAPTURE(config);
      const std::string key = config.substr(2, config.find('"', 2) - 2);
      CHECK(unsupported(config).starts_with(key));
      CHECK(unsupported(config).find("not in this version yet") != std::string::npos);
    }
    CHECK_NOTHROW(static_cast<void>(options(R"({
      "disable_ppo_ratio": false, "force_on_policy_ratio": null, "sequence_level_importance_ratios": false,
      "use_importance_sampling_correction": false, "truncated_importance_sampling_type": null,
      "truncated_importance_sampling_ratio": null, "truncated_importance_sampling_ratio_min": null, "use_cispo": false,
      "positive_example_nll_weight": 0.0})")));
  }

  TEST_CASE("an unknown key is refused with the nearest known one") {
    CHECK(refusal(R"({"ratio_clip_maks": 1})").find("did you mean ratio_clip_max?") != std::string::npos);
    CHECK(refusal(R"({"ratio_clip_maks": 1})").find("the test") != std::string::npos);
    CHECK(refusal(R"({"zzz": 1})").find("the keys are ratio_clip_min") != std::string::npos);
    // Also beside a key that only a later version has.
    CHECK(refusal(R"({"use_cispo": true, "tokn_level_loss": 1})").find("did you mean token_level_loss?") !=
          std::string::npos);
  }

  TEST_CASE("a value without meaning is refused by its key") {
    for (const char* config : {
             R"({"ratio_clip_min": "x"})",
             R"({"ratio_clip_min": null})",
             R"({"ratio_clip_max": -0.1})",
             R"({"ratio_clip_c": 1})",
             R"({"ratio_clip_c": 0})",
             R"({"reference_policy_kl_penalty": "inf"})",
             R"({"reference_policy_kl_type": "k4"})",
             R"({"reference_policy_kl_type": 3})",
             R"({"kl_input_clamp_value": -1})",
             R"({"kl_output_clamp_value": true})",
             R"({"use_kl_in_reward": 1})",
             R"({"token_level_loss": null})",
             R"({"truncated_importance_sampling_type": "tiss"})",
             R"({"positive_example_nll_weight": []})",
         }) {
      const std::string text(config);
      const std::string key = text.substr(2, text.find('"', 2) - 2);
      CAPTURE(text);
      CHECK(refusal(text).find(key + ": ") != std::string::npos);
    }
    CHECK(refusal("[1]").find("a JSON object") != std::string::npos);
  }

  TEST_CASE("nll has no keys") {
    CHECK(refusal("{}", LossKind::nll) == "no refusal");
    CHECK(refusal(R"({"ratio_clip_c": 3})", LossKind::nll).find("ratio_clip_c") != std::string::npos);
  }

  TEST_CASE("kinds have names with and without packed_, and presets are kinds with options") {
    CHECK(loss_kind("packed_nll") == LossKind::nll);
    CHECK(loss_kind("nll") == LossKind::nll);
    CHECK(loss_kind("packed_clipped_policy_gradient") == LossKind::clipped_policy_gradient);
    CHECK(named_loss("nll").kind == LossKind::nll);
    CHECK(named_loss("grpo").policy.clip_high == 0.2);
    CHECK(named_loss("dapo").policy.clip_high == 0.28);
    CHECK(named_loss("dapo").policy.kl_penalty == 0);
    for (const char* later : {"dpo", "preference", "distillation", "mse_value", "soft_cross_entropy", "filtered_logprob"}) {
      CHECK_THROWS_AS(static_cast<void>(named_loss(later)), Unsupported);
      CHECK_THROWS_AS(static_cast<void>(loss_kind(later)), Unsupported);
    }
    CHECK_THROWS_AS(static_cast<void>(loss_kind("packed_dpo")), Unsupported);
    CHECK_THROWS_AS(static_cast<void>(loss_kind("what")), Unsupported);
    CHECK_THROWS_WITH_AS(static_cast<void>(named_loss("grop")), doctest::Contains("did you mean grpo?"), UsageError);
  }
}

}  // namespace losstape::cli
