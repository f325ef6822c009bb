// SPDX-License-Identifier: Apache-2.0
// Faults that others met in the arithmetic of a row, each as its minimal input and the right result. Numbers: the
// catalogue's.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "ops/dual.h"
#include "ops/losses/policy_loss.h"
#include "ops/masked_reduce.h"
#include "tests/ops/columns_case.h"
#include "tests/ops/dense.h"
#include "tests/support/refusal.h"

namespace losstape::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPrinted = 1.5e-6;  // right results are printed to six digits

// Both tapes, on one rank and on the given splits.
template <class F>
void everywhere(Dense dense, const std::vector<std::vector<Index>>& splits, const F& check) {
  for (const std::vector<Index>& cuts : splits) {
    CAPTURE(cuts.size());
    dense.cuts = cuts;
    dense.dtype = DType::f64;
    const DenseResult wide = evaluate<double>(dense);
    CHECK(wide.ranks_agree);
    check(wide);
    dense.dtype = DType::f32;
    const DenseResult narrow = evaluate<float>(dense);
    CHECK(narrow.ranks_agree);
    check(narrow);
  }
}

}  // namespace

TEST_CASE("a -inf column leaves the entropy finite and gets a gradient of exactly 0") {  // B01
  const Dense dense{.logits = row({0, -kInf, std::log(3.0)}), .targets = {-100}, .entropy_adjoint = {1}};
  everywhere(dense, {{}, {1, 2}}, [](const DenseResult& r) {
    CHECK(std::abs(r.entropy(0, 0) - 0.562335) <= kPrinted);
    CHECK(near(r.gradient, row({0.205990, 0, -0.205990}), kPrinted));
    CHECK(std::bit_cast<std::uint64_t>(r.gradient(0, 1)) == 0);
  });
}

TEST_CASE("a row of -inf alone is excluded by its mask, and an error that names it where it counts") {  // B03
  Dense dense{.logits = rows({{0, 0, 0, 0}, {-kInf, -kInf, -kInf, -kInf}}), .targets = {0, 1}, .logprob_adjoint = {1, 0}};
  everywhere(dense, {{}, {2}}, [](const DenseResult& r) {
    CHECK(std::abs(r.logprob(0, 0) + 1.386294) <= kPrinted);
    CHECK(near(r.gradient, rows({{0.75, -0.25, -0.25, -0.25}, {0, 0, 0, 0}}), 1e-7));
    CHECK((r.gradient.row(1).array() == 0).all());
  });
  dense.logprob_adjoint = {1, 1};
  const UsageError error = refusal([&] { (void)evaluate<double>(dense); });
  check_says(error, "row 1");
  check_says(error, "every logit of the row is -inf");
  dense.non_finite = NonFinite::propagate;
  const DenseResult r = evaluate<double>(dense);
  CHECK(std::isnan(r.logprob(1, 0)));
  CHECK(near(r.gradient.row(0), row({0.75, -0.25, -0.25, -0.25}), 1e-15));
}

TEST_CASE("an offset common to all logits changes nothing") {  // B05
  Dense dense{
      .logits = rows({{1e4 + 2, 1e4 - 1}, {1e8, 1e8}, {-1e8, -1e8}}), .targets = {0, 0, 0}, .logprob_adjoint = {-1, -1, -1}};
  everywhere(dense, {{}, {1}}, [](const DenseResult& r) {
    CHECK(near(r.logprob, rows({{-0.048587}, {-0.693147}, {-0.693147}}), kPrinted));
    CHECK(near(r.gradient.row(0), row({-0.047426, 0.047426}), kPrinted));
    CHECK(near(r.gradient.bottomRows(2), rows({{-0.5, 0.5}, {-0.5, 0.5}}), 1e-7));
  });
}

TEST_CASE("log-probs of bf16 logits are fp32 numbers, and the same input twice has ratio exactly 1") {  // B06
  const Dense dense{.logits = Matrix::Zero(2, 100), .targets = {0, 0}, .dtype = DType::bf16};
  const DenseResult r = evaluate<float>(dense);
  CHECK(std::abs(r.logprob(0, 0) + 4.605170186) <= 2e-6);
  CHECK(std::exp(float(r.logprob(0, 0)) - float(r.logprob(1, 0))) == 1.0F);
}

TEST_CASE("the gradient at a confident target keeps its precision from bf16 logits") {  // B07
  Dense dense{.logits = row({8, 0, 0, 0}), .targets = {0}, .logprob_adjoint = {-1}, .dtype = DType::bf16};
  CHECK(std::abs(evaluate<float>(dense).gradient(0, 0) + 0.00100538) <= 5e-9);
  Buffer logits(1, 4, DType::bf16);
  logits.fill(0);
  logits.set(0, 0, 8);
  Buffer slice(1, 4, DType::bf16);
  Tape tape;
  const std::vector<std::int64_t> target{0};
  const Var z = tape.input(logits.view(), slice.mutable_view(), Grad::overwrite, SliceRounding::allowed);
  const std::vector<float> seed{-1};
  tape.backward(vocab_stats(z, target, VocabShard::whole(4)).logprob, seed);
  CHECK(slice.get(0, 0) == convert<double>(BFloat16(-0.00100538F)));
}

TEST_CASE("a wide vocabulary of 16-bit logits neither overflows nor stalls its sum") {  // B11
  for (const DType dtype : {DType::f16, DType::bf16}) {
    CAPTURE(name(dtype));
    const Dense dense{.logits = Matrix::Zero(1, 70000), .targets = {0}, .logprob_adjoint = {1}, .dtype = dtype};
    const DenseResult r = evaluate<float>(dense);
    CHECK(std::abs(r.logprob(0, 0) + 11.156250521) <= 2e-6 * 11.2);
    CHECK(std::abs(r.gradient(0, 0) - (1 - 1 / 7e4)) <= 2e-6);
    for (Index j = 1; j < 70000; ++j) REQUIRE(std::abs(r.gradient(0, j) + 1 / 7e4) <= 2e-6 / 7e4);
  }
}

TEST_CASE("a ratio that overflows on a masked token changes no bit") {  // B13
  for (const double stale : {-201.0, -kInf, kNan}) {
    CAPTURE(stale);
    const PolicyCase found = policy_case({.logp = {-1, -1}, .prev = {-1, stale}, .advantage = {1, 1}, .mask = {1, 0}});
    CHECK(found.loss == -1);
    CHECK(found.gradient == std::vector<double>{-1, 0});
  }
}

TEST_CASE("a KL penalty that overflows is capped with gradient exactly 0, or an error that names the token") {  // B15
  const auto k3 = [](double logp, double ref, bool cap) {
    PolicyLossOptions options;
    options.kl_penalty = 1;
    options.kl_clamps = {.bounds_input = false, .bounds_output = cap, .output = 10};
    options.kl_weight = KlWeight::on_policy;  // weight e^(ℓ − generation), here 1 with no slope of its own
    return policy_case({.logp = {logp},
                        .prev = {logp},
                        .advantage = {0},
                        .mask = {1},
                        .generation = {logp},
                        .reference = {ref},
                        .options = options});
  };
  const PolicyCase capped = k3(-200, 0, true);
  CHECK(capped.loss == doctest::Approx(10));
  CHECK(capped.gradient == std::vector<double>{0});
  const UsageError error = refusal([&] { (void)k3(-200, 0, false); });
  check_says(error, "row 0");
  check_says(error, "inf");
  check_says(error, "token_map made it");
  // The estimate by itself: value 0.148721, slope −0.648721.
  using D = Dual<double, 1>;
  const D kl = calculate_kl(KlEstimator::k3, D::variable(-1, 0), D(-0.5), D(1), {});
  CHECK(std::abs(kl.value - 0.148721) <= kPrinted);
  CHECK(std::abs(kl.d[0] + 0.648721) <= kPrinted);
}

}  // namespace losstape::testing
