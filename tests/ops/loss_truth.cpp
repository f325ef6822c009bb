// SPDX-License-Identifier: Apache-2.0
// The definitions.
#include "tests/ops/loss_truth.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace losstape::testing {
namespace {

struct Slope {
  double value = 0;
  double d = 0;  // with respect to the log-prob
};

double estimate(KlEstimator estimator, double r) {
  switch (estimator) {
    case KlEstimator::k1: return -r;
    case KlEstimator::k2: return r * r / 2;
    case KlEstimator::k3: return std::exp(r) - 1 - r;
  }
  return 0;
}

double estimate_slope(KlEstimator estimator, double r) {
  switch (estimator) {
    case KlEstimator::k1: return -1;
    case KlEstimator::k2: return r;
    case KlEstimator::k3: return std::exp(r) - 1;
  }
  return 0;
}

Slope policy_term(double logp, double adv, double prev, const PolicyLossOptions& o) {
  const double r = std::exp(logp - prev);
  const double low = 1 - o.clip_low;
  const double high = 1 + o.clip_high;
  const bool inside = low <= r && r <= high;
  const double clipped = std::min(std::max(r, low), high);
  Slope loss;
  if (-adv * r > -adv * clipped || inside) {
    loss = {-adv * r, -adv * r};
  } else if (-adv * r < -adv * clipped) {
    loss = {-adv * clipped, 0};
  } else {  // a tie outside: the advantage is 0
    loss = {-adv * r, 0};
  }
  if (o.dual_clip > 0 && adv < 0) {
    const double most = -adv * o.dual_clip;
    if (loss.value > most) loss = {most, 0};
    if (loss.value == most) loss.d *= 0.5;
  }
  return loss;
}

Slope kl_term(double logp, double generation, double ref, const PolicyLossOptions& o) {
  double r = ref - logp;
  double weight = 1;
  double weight_slope = 1;
  if (o.kl_weight == KlWeight::on_policy) {
    weight = std::exp(logp - generation);
    if (!std::isfinite(weight)) weight = 0;
    weight_slope = weight;
  }
  const bool clamped = o.kl_clamps.bounds_input && std::abs(r) > o.kl_clamps.input;
  if (clamped) r = r > 0 ? o.kl_clamps.input : -o.kl_clamps.input;
  Slope kl{weight * estimate(o.kl_estimator, r), 0};
  if (!clamped) kl.d = weight_slope * estimate(o.kl_estimator, r) - weight * estimate_slope(o.kl_estimator, r);
  if (o.kl_clamps.bounds_output && std::abs(kl.value) > o.kl_clamps.output) {
    kl = {kl.value > 0 ? o.kl_clamps.output : -o.kl_clamps.output, 0};
  }
  return kl;
}

}  // namespace

Weights weights_of(const Batch& batch) {
  Weights w;
  std::vector<double> in_sequence(std::size_t(batch.sequences()), 0.0);
  double live = 0;
  for (Index g = 0; g < batch.tokens(); ++g) {
    in_sequence[std::size_t(batch.sequence_of(g))] += batch.at_prediction(batch.token_mask, g);
  }
  const auto sample = [&](Index b) { return batch.sample_mask.empty() ? 1.0 : batch.sample_mask[std::size_t(b)]; };
  for (Index b = 0; b < batch.sequences(); ++b) {
    w.samples += sample(b);
    w.tokens += sample(b) * in_sequence[std::size_t(b)];
    if (in_sequence[std::size_t(b)] > 0) live += sample(b);
  }
  const double tokens = batch.counts.tokens.value_or(w.tokens) + 1e-8;
  const double sequences = batch.counts.sequences.value_or(live) + 1e-8;
  for (Index g = 0; g < batch.tokens(); ++g) {
    const Index b = batch.sequence_of(g);
    const double t = batch.at_prediction(batch.token_mask, g);
    w.mask.push_back(t * sample(b));
    w.token.push_back(t * sample(b) / tokens);
    w.sequence.push_back(sample(b) * t / (in_sequence[std::size_t(b)] + 1e-8) / sequences);
  }
  return w;
}

LossTruth nll_truth(const Batch& batch, const reference::Vector& logp) {
  const Weights w = weights_of(batch);
  LossTruth truth;
  truth.slope = reference::Vector::Zero(batch.tokens());
  for (Index g = 0; g < batch.tokens(); ++g) {
    if (w.mask[std::size_t(g)] == 0) continue;
    truth.loss -= w.token[std::size_t(g)] * logp(g);
    truth.slope(g) = -w.token[std::size_t(g)];
  }
  truth.metrics = {truth.loss, w.tokens, w.samples};
  return truth;
}

LossTruth policy_truth(const Batch& batch, const reference::Vector& logp, const PolicyLossOptions& o) {
  const Weights w = weights_of(batch);
  const std::vector<double>& mean = o.level == LossLevel::token ? w.token : w.sequence;
  LossTruth truth;
  truth.slope = reference::Vector::Zero(batch.tokens());
  constexpr double kInf = std::numeric_limits<double>::infinity();
  double ratio = 0, clamped = 0, kl = 0, mult = 0, gen_kl = 0, policy_kl = 0, js = 0, weight = 0, surprise = 0;
  double ratio_min = kInf, ratio_max = -kInf, clamped_min = kInf, clamped_max = -kInf;
  for (Index g = 0; g < batch.tokens(); ++g) {
    const auto at = std::size_t(g);
    if (w.mask[at] == 0) continue;
    const double l = logp(g);
    const double p = batch.at_prediction(batch.prev, g);
    const double gen = batch.at_prediction(batch.generation, g);
    const Slope actor = policy_term(l, batch.at_prediction(batch.advantages, g), p, o);
    Slope penalty;
    if (o.kl_penalty != 0) penalty = kl_term(l, gen, batch.at_prediction(batch.reference, g), o);
    truth.loss += mean[at] * (actor.value + o.kl_penalty * penalty.value);
    truth.slope(g) = mean[at] * (actor.d + o.kl_penalty * penalty.d);
    kl += mean[at] * penalty.value;
    const double r = std::exp(l - p);
    const double r_hat = std::min(std::max(r, 1 - o.clip_low), 1 + o.clip_high);
    ratio += w.token[at] * r;
    clamped += w.token[at] * r_hat;
    ratio_min = std::min(ratio_min, r);
    ratio_max = std::max(ratio_max, r);
    clamped_min = std::min(clamped_min, r_hat);
    clamped_max = std::max(clamped_max, r_hat);
    mult += w.token[at] * std::exp(std::abs(gen - p));
    gen_kl += w.token[at] * estimate(o.kl_estimator, p - gen);
    policy_kl += w.token[at] * estimate(o.kl_estimator, gen - p);
    const double m = std::log(0.5 * std::exp(p) + 0.5 * std::exp(gen));
    js += w.token[at] * 0.5 * (estimate(KlEstimator::k3, p - m) + estimate(KlEstimator::k3, gen - m));
    weight += w.token[at] * std::exp(p - gen);
    surprise -= w.token[at] * std::exp(l - gen) * l;
  }
  truth.metrics = {truth.loss, ratio,  clamped,   ratio_min, ratio_max, clamped_min, clamped_max, kl,
                   mult,       gen_kl, policy_kl, js,        weight,    surprise,    w.samples,   0};
  return truth;
}

}  // namespace losstape::testing
