// SPDX-License-Identifier: Apache-2.0
// What one token of the clipped policy gradient gives: options, terms and the functor. Host and device.
#pragma once

#include <array>
#include <cstddef>

#include "engine/device.h"
#include "ops/losses/kl.h"

namespace losstape {

// By what the score-function form of the KL penalty is weighted.
enum class KlWeight : unsigned char {
  score_function,  // e^(ℓ − sg ℓ): 1 in value, carries the gradient of the sampling
  on_policy,       // e^(ℓ − generation): as if the sampler were the policy (importance weight)
};

// Where the mean is taken.
enum class LossLevel : unsigned char {
  token,     // over all tokens
  sequence,  // over the means of sequences
};

// Defaults are NeMo-RL's. Sources: PPO, arXiv:1707.06347; GRPO, arXiv:2402.03300; DAPO (asymmetric), arXiv:2503.14476; dual
// clip, arXiv:1912.09729.
struct PolicyLossOptions {
  double clip_low = 0.2;     // ε below 1
  double clip_high = 0.2;    // ε above 1
  double dual_clip = 0;      // bound c > 1 on the loss of negative advantages; 0: none
  double kl_penalty = 0.01;  // β
  KlEstimator kl_estimator = KlEstimator::k3;
  KlClamps kl_clamps{};
  KlWeight kl_weight = KlWeight::score_function;
  LossLevel level = LossLevel::token;

  static PolicyLossOptions grpo() { return {}; }
  static PolicyLossOptions dapo() {
    PolicyLossOptions options;
    options.clip_high = 0.28;
    options.kl_penalty = 0;
    return options;
  }
};

// What a token gives: the loss, which is differentiated, and the quantities of its metrics.
enum class PolicyTerm : unsigned char {
  loss,
  ratio,
  ratio_clamped,
  kl,               // before β
  mult_prob_error,  // e^|generation − previous| (NeMo-RL multiplies the exponent by the mask: the same for masks of 0 and 1)
  generation_kl,    // KL(generation ‖ previous), unclamped
  policy_kl,        // KL(previous ‖ generation), unclamped
  js_divergence,    // ½ f(p − M) + ½ f(g − M), M = log(½e^p + ½e^g), f(y) = e^y − y − 1
  behaviour_weight,  // e^(previous − generation), 0 where it is not finite
  surprise,          // −e^(ℓ − generation) ℓ: the entropy, from samples
};
inline constexpr std::size_t kPolicyTerms = 10;

// The functor: ℓ log-prob now, A advantage, p previous, g generation, q reference.
//   r = e^(ℓ − p),  r̂ = clamp(r, 1 − ε_low, 1 + ε_high),  L = max(−A r, −A r̂);  where A < 0 and a bound c is set: min(L, −A
//   c) loss = L + β · calculate_kl(ℓ ‖ q)
struct PolicyFunctor {
  PolicyLossOptions options;

  template <class T>
  LOSSTAPE_HOST_DEVICE std::array<T, kPolicyTerms> operator()(const T& logp, const T& advantage, const T& prev,
                                                              const T& generation, const T& reference) const {
    const T ratio = exp(logp - prev);
    const T clamped = clamp(ratio, 1 - options.clip_low, 1 + options.clip_high);
    T loss = max(-advantage * ratio, -advantage * clamped);
    if (options.dual_clip > 0) {
      loss = select(advantage < T(0), min(loss, -advantage * T(options.dual_clip)), loss);
    }
    T kl = T(0);
    if (options.kl_penalty != 0) {
      const T weight = exp(logp - (options.kl_weight == KlWeight::on_policy ? generation : stop_gradient(logp)));
      kl = calculate_kl(options.kl_estimator, logp, reference, select(is_finite(weight), weight, T(0)), options.kl_clamps);
      loss = loss + T(options.kl_penalty) * kl;
    }
    const T behind = generation - prev;
    const T behaviour = exp(-behind);
    // log(½e^p + ½e^g) from the larger of the two.
    const T mean = max(prev, generation) + log1p(exp(-abs(behind))) - T(0.6931471805599453);
    return {loss,
            ratio,
            clamped,
            kl,
            exp(abs(behind)),
            kl_of_ratio(options.kl_estimator, prev - generation),
            kl_of_ratio(options.kl_estimator, behind),
            T(0.5) * (expm1(prev - mean) - (prev - mean)) + T(0.5) * (expm1(generation - mean) - (generation - mean)),
            select(is_finite(behaviour), behaviour, T(0)),
            -exp(logp - generation) * logp};
  }
};

}  // namespace losstape
