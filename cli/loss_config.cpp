// SPDX-License-Identifier: Apache-2.0
// The table of configuration keys, each with what its value sets.
#include "cli/loss_config.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "cli/nearest.h"
#include "engine/error.h"
#include "ops/losses/nll.h"
#include "ops/losses/policy_loss.h"

namespace losstape::cli {
namespace {

constexpr std::array<const char*, 7> kLaterKinds{
    "dpo", "preference", "distillation", "mse_value", "filtered_logprob", "soft_cross_entropy", "fused_linear_logprob"};

// One key's value on its way into the options.
class Value {
 public:
  Value(const std::string& key, const Json& json, const std::string& source) : key_(key), json_(json), source_(source) {}

  [[noreturn]] void refuse(const std::string& expected) const {
    throw DataError({"config", key_ + ": " + expected, in_quotes(json_.dump()), source_});
  }
  [[noreturn]] void later() const { throw Unsupported(key_ + " " + json_.dump() + " is not in this version yet"); }

  [[nodiscard]] bool off() const { return json_.is_null(); }
  [[nodiscard]] bool is_true() const {
    if (off()) return false;
    if (!json_.is_boolean()) refuse("true or false");
    return json_.get<bool>();
  }
  [[nodiscard]] double at_least(double least) const {
    const double value = json_.is_number() ? json_.get<double>() : std::nan("");
    if (!std::isfinite(value) || value < least) refuse("a number of at least " + number(least));
    return value;
  }
  [[nodiscard]] double finite() const {
    if (!json_.is_number() || !std::isfinite(json_.get<double>())) refuse("a number");
    return json_.get<double>();
  }
  [[nodiscard]] std::string word() const {
    if (!json_.is_string()) refuse("a string");
    return json_.get<std::string>();
  }
  void number_or_off() const {
    if (!off()) static_cast<void>(finite());
  }

 private:
  const std::string& key_;
  const Json& json_;
  const std::string& source_;
};

void set_clamp(const Value& value, bool& bounds, double& bound) {
  bounds = !value.off();
  if (bounds) bound = value.at_least(0);
}

KlEstimator estimator(const Value& value) {
  const std::string word = value.word();
  if (word == "k1") return KlEstimator::k1;
  if (word == "k2") return KlEstimator::k2;
  if (word == "k3") return KlEstimator::k3;
  value.refuse("k1, k2 or k3");
}

// use_kl_in_reward switches the penalty off wherever it stands, so it is applied after all keys.
struct Policy {
  PolicyLossOptions options;
  bool kl_in_reward = false;
};

struct Key {
  const char* name;
  void (*set)(const Value& value, Policy& policy);
};

// What a later version has: the value that switches it off is taken, any other is named.
void only_off(const Value& value, Policy& /*policy*/) {
  if (value.is_true()) value.later();
}
void no_number(const Value& value, Policy& /*policy*/) {
  value.number_or_off();
  if (!value.off()) value.later();
}

constexpr std::array kPolicyKeys{
    Key{"ratio_clip_min", [](const Value& v, Policy& p) { p.options.clip_low = v.at_least(0); }},
    Key{"ratio_clip_max", [](const Value& v, Policy& p) { p.options.clip_high = v.at_least(0); }},
    Key{"ratio_clip_c",
        [](const Value& v, Policy& p) {
          p.options.dual_clip = v.off() ? 0 : v.finite();
          if (!v.off() && !(p.options.dual_clip > 1)) v.refuse("a number above 1, or null");
        }},
    Key{"reference_policy_kl_penalty", [](const Value& v, Policy& p) { p.options.kl_penalty = v.off() ? 0 : v.finite(); }},
    Key{"reference_policy_kl_type", [](const Value& v, Policy& p) { p.options.kl_estimator = estimator(v); }},
    Key{"kl_input_clamp_value",
        [](const Value& v, Policy& p) { set_clamp(v, p.options.kl_clamps.bounds_input, p.options.kl_clamps.input); }},
    Key{"kl_output_clamp_value",
        [](const Value& v, Policy& p) { set_clamp(v, p.options.kl_clamps.bounds_output, p.options.kl_clamps.output); }},
    Key{"use_kl_in_reward", [](const Value& v, Policy& p) { p.kl_in_reward = v.is_true(); }},
    Key{"use_on_policy_kl_approximation",
        [](const Value& v, Policy& p) {
          p.options.kl_weight = v.is_true() ? KlWeight::on_policy : KlWeight::score_function;
        }},
    Key{"token_level_loss",
        [](const Value& v, Policy& p) {
          if (v.off()) v.refuse("true or false");
          p.options.level = v.is_true() ? LossLevel::token : LossLevel::sequence;
        }},
    Key{"disable_ppo_ratio", only_off},
    Key{"force_on_policy_ratio", only_off},
    Key{"sequence_level_importance_ratios", only_off},
    Key{"use_importance_sampling_correction", only_off},
    Key{"truncated_importance_sampling_type",
        [](const Value& v, Policy& /*policy*/) {
          if (v.off()) return;
          const std::string word = v.word();
          if (word != "tis" && word != "icepop" && word != "seq-mask-tis") v.refuse("tis, icepop, seq-mask-tis or null");
          v.later();
        }},
    Key{"truncated_importance_sampling_ratio", no_number},
    Key{"truncated_importance_sampling_ratio_min", no_number},
    Key{"use_cispo", only_off},
    Key{"positive_example_nll_weight",
        [](const Value& v, Policy& /*policy*/) {
          if (!v.off() && v.finite() != 0) v.later();
        }},
};

// Unknown keys first: a config with a mistake is refused for it, whatever else it needs.
PolicyLossOptions policy_options(const PolicyLossOptions& start, const Json& config, const std::string& source) {
  std::vector<std::string> known;
  known.reserve(kPolicyKeys.size());
  for (const Key& key : kPolicyKeys) known.emplace_back(key.name);
  for (const auto& [name, value] : config.items()) {
    bool found = false;
    for (const Key& key : kPolicyKeys) found = found || key.name == name;
    if (!found) {
      const std::string nearest = did_you_mean(name, known);
      throw DataError({"config", "a key of clipped_policy_gradient", in_quotes(name) + nearest,
                       source + (nearest.empty() ? "; the keys are " + listed(known) : "")});
    }
  }
  Policy policy{start};
  for (const auto& [name, value] : config.items()) {
    for (const Key& key : kPolicyKeys) {
      if (key.name == name) key.set(Value(name, value, source), policy);
    }
  }
  if (policy.kl_in_reward) policy.options.kl_penalty = 0;
  return policy.options;
}

std::string clamp_text(bool bounds, double bound) { return bounds ? number(bound) : "none"; }

}  // namespace

const char* name(LossKind kind) {
  switch (kind) {
    case LossKind::clipped_policy_gradient: return "clipped_policy_gradient";
    case LossKind::nll: return "nll";
  }
  return "?";
}

std::string describe(const LossChoice& choice) {
  if (choice.kind == LossKind::nll) return "mean over tokens";
  const PolicyLossOptions& o = choice.policy;
  std::string text = "clip " + number(o.clip_low) + " / " + number(o.clip_high);
  if (o.dual_clip > 0) text += ", dual clip " + number(o.dual_clip);
  text += o.level == LossLevel::token ? ", mean over tokens" : ", mean of sequence means";
  if (o.kl_penalty == 0) return text + ", no KL penalty";
  text += "\nKL penalty " + number(o.kl_penalty);
  text += o.kl_estimator == KlEstimator::k1 ? " · k1" : o.kl_estimator == KlEstimator::k2 ? " · k2" : " · k3";
  text += ", clamps " + clamp_text(o.kl_clamps.bounds_input, o.kl_clamps.input) + " / " +
          clamp_text(o.kl_clamps.bounds_output, o.kl_clamps.output);
  return text + (o.kl_weight == KlWeight::on_policy ? ", weighted by the sampler" : "");
}

LossKind loss_kind(std::string_view kind) {
  const std::string full(kind);
  if (kind.starts_with("packed_")) kind.remove_prefix(7);
  if (kind == "clipped_policy_gradient") return LossKind::clipped_policy_gradient;
  if (kind == "nll") return LossKind::nll;
  for (const char* later : kLaterKinds) {
    if (kind == later) throw Unsupported("kind " + full + " is not in this version yet");
  }
  if (kind == "vocab_ops") throw Unsupported("kind vocab_ops has no loss; `losstape check` compares such a case");
  throw Unsupported(full.empty() ? "it has no kind" : "kind " + in_quotes(full) + " is not known");
}

LossChoice named_loss(const std::string& name) {
  std::vector<std::string> known{"clipped_policy_gradient", "nll", "grpo", "dapo"};
  if (name == "clipped_policy_gradient") return {};
  if (name == "nll") return {LossKind::nll, {}};
  if (name == "grpo") return {LossKind::clipped_policy_gradient, PolicyLossOptions::grpo()};
  if (name == "dapo") return {LossKind::clipped_policy_gradient, PolicyLossOptions::dapo()};
  for (const char* later : kLaterKinds) {
    if (name == later) throw Unsupported("the loss " + name + " is not in this version yet; it has " + listed(known));
  }
  throw UsageError({"--loss", "one of " + listed(known), in_quotes(name) + did_you_mean(name, known)});
}

LossChoice configured(LossChoice choice, const Json& config, const std::string& source) {
  if (!config.is_object()) {
    throw DataError({"config", "a JSON object, such as {\"ratio_clip_max\": 0.28}", in_quotes(config.dump()), source});
  }
  switch (choice.kind) {
    case LossKind::clipped_policy_gradient: choice.policy = policy_options(choice.policy, config, source); break;
    case LossKind::nll:
      if (!config.empty()) throw DataError({"config", "no key for nll", in_quotes(config.begin().key()), source});
      break;
  }
  return choice;
}

template <class R>
BasicLossResult<R> record_loss(const LossChoice& choice, BasicVar<R> logprob, const Packing& packing,
                               const LossColumns& columns, const Counts& counts) {
  if (choice.kind == LossKind::nll) return nll_loss(logprob, packing, columns, counts);
  return policy_loss(logprob, packing, columns, choice.policy, counts);
}

template BasicLossResult<float> record_loss(const LossChoice&, BasicVar<float>, const Packing&, const LossColumns&,
                                            const Counts&);
template BasicLossResult<double> record_loss(const LossChoice&, BasicVar<double>, const Packing&, const LossColumns&,
                                             const Counts&);

}  // namespace losstape::cli
