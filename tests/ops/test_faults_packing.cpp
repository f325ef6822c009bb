// SPDX-License-Identifier: Apache-2.0
// Faults that others met with packed sequences and means over them, each as its minimal input and the right result.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "ops/losses/nll.h"
#include "ops/losses/policy_loss.h"
#include "ops/masked_reduce.h"
#include "ops/sequence.h"
#include "ops/token_map.h"
#include "ops/vocab_stats.h"
#include "tests/ops/columns_case.h"
#include "tests/ops/sample.h"
#include "tests/support/near.h"
#include "tests/support/random.h"

namespace losstape::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Logits of two columns under which the first has the log-prob −loss.
std::vector<double> logits_of_losses(const std::vector<double>& losses) {
  std::vector<double> x;
  for (const double loss : losses) x.insert(x.end(), {0.0, std::log(std::expm1(loss))});
  return x;
}

// A column of a pack's rows, with the mask given in those rows too.
struct Column {
  std::vector<double> x;
  std::vector<double> slice;
  std::vector<double> mask;
  Packing packing;
  TapeF64 tape{{.audit = Audit::unwritten_rows}};

  Column(std::vector<std::int64_t> cu, std::vector<double> values, std::vector<double> of_rows)
      : x(std::move(values)), slice(x.size(), -3), mask(std::move(of_rows)) {
    packing.assign(cu);
  }
  VarF64 var() { return tape.input(x, slice); }
  VarF64 mask_var() { return tape.constant(mask); }
  VarF64 mean(Per per, const Counts& counts = {}) {
    const std::array<ReducedColumn<double>, 1> column{{{var(), per}}};
    return masked_reduce<double>(column, mask_var(), {}, packing, counts)[0];
  }
};

}  // namespace

TEST_CASE("the last token of a sequence is not scored against the first of the next") {  // B29
  const std::vector<std::int64_t> ids{10, 11, 12, 20, 21};
  const std::vector<std::int32_t> cu{0, 3, 5};
  const std::vector<double> mask(5, 1.0);
  Random random(1);
  Matrix logits(5, 22);
  for (Index at = 0; at < logits.size(); ++at) logits.data()[at] = random.normal();
  Matrix slice = Matrix::Constant(5, 22, kNan);
  Packing packing;
  packing.assign(cu);
  TapeF64 tape({.audit = Audit::unwritten_rows});
  const auto s = vocab_stats(tape.input(logits, slice), packing, ids, VocabShard::whole(22));
  const auto r = nll_loss(s, packing, {.token_mask = mask});
  tape.backward(r.loss);
  const std::vector<Index> targets{11, 12, -1, 21, -1};
  const reference::Vector right = reference::logprob(logits, targets);
  CHECK(r.metric("num_unmasked_tokens").value.item() == 3);
  CHECK(r.loss.item() == relative(-right.sum() / (3 + 1e-8), 1e-13));
  for (const Index row : {Index{2}, Index{4}}) {
    CHECK(tape.value(s.logprob).get<double>(row) == 0);
    for (Index j = 0; j < 22; ++j) CHECK(std::bit_cast<std::uint64_t>(slice(row, j)) == 0);
  }
}

TEST_CASE("an empty sequence counts in no mean") {  // B31
  const std::vector<std::int64_t> cu{0, 2, 2, 3};
  Column sequences(cu, {1, 3, 8}, {1, 1, 1});
  const VarF64 mean = sequences.mean(Per::sequences);
  CHECK(mean.item() == relative(5, 1e-7));
  sequences.tape.backward(mean);
  CHECK(sequences.slice[0] == relative(0.25, 1e-7));
  CHECK(sequences.slice[2] == relative(0.5, 1e-7));
  CHECK(Column(cu, {1, 3, 8}, {1, 1, 1}).mean(Per::tokens).item() == relative(4, 1e-7));
  Column each(cu, {1, 3, 8}, {1, 1, 1});
  const View means = each.tape.value(sequence_mean(each.var(), each.mask_var(), each.packing));
  CHECK(means.get<double>(0) == doctest::Approx(2));
  CHECK(means.get<double>(1) == 0);
  CHECK(means.get<double>(2) == doctest::Approx(8));
}

TEST_CASE("rows of padding that hold NaN get exact zeros and change no other row") {  // B32
  const std::vector<std::int64_t> real{0, 2, 4};
  const std::vector<std::int64_t> padded{0, 3, 6};
  const std::vector<float> values{0.5F, -1, 2, 0.25F, 1, -0.75F, 3, 0.125F};  // [4, 2]
  const auto gradient = [&](bool with_padding) {
    const Index T = with_padding ? 6 : 4;
    std::vector<float> logits(std::size_t(T * 2), kNan);
    std::vector<std::int64_t> ids(std::size_t(T), -1);
    for (Index r = 0; r < 4; ++r) {
      const Index at = with_padding && r >= 2 ? r + 1 : r;
      logits[std::size_t(2 * at)] = values[std::size_t(2 * r)];
      logits[std::size_t(2 * at + 1)] = values[std::size_t(2 * r + 1)];
      ids[std::size_t(at)] = r % 2;
    }
    std::vector<float> slice(std::size_t(T * 2), kNan);
    Packing packing;
    packing.assign(real, with_padding ? padded : real);
    const std::vector<float> mask(std::size_t(T), 1.0F);
    Tape tape({.audit = Audit::unwritten_rows});
    const Var z = tape.input(View(logits.data(), T, 2), MutableView(slice.data(), T, 2));
    tape.backward(nll_loss(vocab_stats(z, packing, ids, VocabShard::whole(2)), packing, {.token_mask = mask}).loss);
    return slice;
  };
  const std::vector<float> plain = gradient(false);
  const std::vector<float> found = gradient(true);
  for (std::size_t at = 0; at < 4; ++at) {
    CHECK(found[at] == plain[at]);
    CHECK(found[6 + at] == plain[4 + at]);
  }
  for (const std::size_t at : {4U, 5U, 10U, 11U}) CHECK(std::bit_cast<std::uint32_t>(found[at]) == 0);
}

TEST_CASE("a micro-batch without a valid token gives 0 and leaves the global divisor alone") {  // B34
  const PolicyInput nothing{.logp = {-1, -2}, .prev = {-1, -2}, .advantage = {1, 1}, .mask = {0, 0}};
  const auto check = [](const PolicyCase& found) {
    CHECK(found.loss == 0);
    for (const double g : found.gradient) CHECK(std::bit_cast<std::uint64_t>(g) == 0);
  };
  check(policy_case(nothing));
  PolicyInput of_three = nothing;
  of_three.counts = {.tokens = 3};
  check(policy_case(of_three));
  // The other micro-batch of those three tokens: each weighs 1/3.
  const PolicyCase other = policy_case<double>(
      {.logp = {-1, -1, -1}, .prev = {-1, -1, -1}, .advantage = {1, 1, 1}, .mask = {1, 1, 1}, .counts = {.tokens = 3}});
  for (const double g : other.gradient) CHECK(g == relative(-1.0 / 3, 1e-8));
  // And the count of tokens says that there was none.
  Column empty({0, 2}, {1, 2}, {0, 0});
  const std::array<ReducedColumn<double>, 1> column{{{empty.var(), Per::tokens}}};
  const auto scalars = masked_reduce<double>(column, empty.mask_var(), {}, empty.packing);
  CHECK(scalars[0].item() == 0);
  CHECK(scalars[1].item() == 0);
}

TEST_CASE("means over micro-batches with the global count weigh every token alike") {  // B35, B44
  double loss = 0;
  for (const std::vector<double>& losses : {std::vector<double>{4}, std::vector<double>{1, 1, 1}}) {
    Column part({0, std::int64_t(losses.size())}, losses, std::vector<double>(losses.size(), 1.0));
    const VarF64 mean = part.mean(Per::tokens, {.tokens = 4});
    part.tape.backward(mean);
    loss += mean.item();
    for (const double g : part.slice) CHECK(g == relative(0.25, 1e-8));
  }
  CHECK(loss == relative(1.75, 1e-8));
}

TEST_CASE("the size of a chunk changes neither a mean nor a sum nor the values by themselves") {  // B37
  const std::vector<double> losses{1, 2, 3, 4, 10};
  const std::vector<double> logits = logits_of_losses(losses);
  const std::vector<std::int64_t> ids(6, 0);
  const std::vector<std::int64_t> cu{0, 6};
  const std::vector<double> mask(6, 1.0);
  std::vector<double> first;
  for (const Index chunk : {1, 2, 3, 5, 100}) {
    CAPTURE(chunk);
    std::vector<double> slice(10, kNan);
    std::vector<double> padded_logits = logits;
    padded_logits.insert(padded_logits.end(), {0, 0});
    slice.resize(12, kNan);
    Packing packing;
    packing.assign(cu);
    TapeF64 tape({.audit = Audit::unwritten_rows});
    const VarF64 z = tape.input(View(padded_logits.data(), 6, 2), MutableView(slice.data(), 6, 2));
    const VarF64 loss = -vocab_stats(z, packing, ids, VocabShard::whole(2), {.chunk_rows = chunk}).logprob;
    const View each = tape.value(loss);
    REQUIRE(each.rows == 6);
    for (Index r = 0; r < 5; ++r) CHECK(each.get<double>(r) == relative(losses[std::size_t(r)], 1e-12));
    const std::array<ReducedColumn<double>, 2> columns{{{loss, Per::tokens}, {loss, Per::none}}};
    const auto scalars = masked_reduce<double>(columns, tape.constant(packing.to_predictions(mask)), {}, packing);
    CHECK(scalars[0].item() == relative(4, 1e-8));
    CHECK(scalars[1].item() == relative(20, 1e-12));
    tape.backward(scalars[0]);
    if (first.empty()) first = slice;
    CHECK(slice == first);
  }
}

TEST_CASE("extrema and fractions of a pack are those of all its tokens together") {  // B38
  const std::vector<std::int64_t> cu{0, 4, 6};
  Column ratio(cu, {0.8, 1.1, 0.9, 1.0, 0.5, 1.4}, std::vector<double>(6, 1.0));
  const VarF64 x = ratio.var();
  const std::array<ReducedColumn<double>, 3> columns{{{x, Per::tokens}, {x, Per::min}, {x, Per::max}}};
  const auto scalars = masked_reduce<double>(columns, ratio.mask_var(), {}, ratio.packing);
  CHECK(scalars[1].item() == 0.5);
  CHECK(scalars[2].item() == 1.4);
  Column clipped({0, 4, 5}, {1, 0, 0, 0, 1}, std::vector<double>(5, 1.0));
  CHECK(clipped.mean(Per::tokens).item() == relative(0.4, 1e-8));
}

TEST_CASE("the extrema of no token are +inf and -inf, and a NaN among the tokens shows") {
  Column none({0, 2}, {1, 2}, {0, 0});
  const VarF64 x = none.var();
  const std::array<ReducedColumn<double>, 3> columns{{{x, Per::none}, {x, Per::min}, {x, Per::max}}};
  const auto scalars = masked_reduce<double>(columns, none.mask_var(), {}, none.packing);
  CHECK(scalars[1].item() == std::numeric_limits<double>::infinity());
  CHECK(scalars[2].item() == -std::numeric_limits<double>::infinity());
  // Beside a loss that is finite.
  for (const std::vector<double>& odd : {std::vector<double>{kNan, 2}, std::vector<double>{2, kNan}}) {
    Column part({0, 2}, {1, 2}, {1, 1});
    const VarF64 metric = part.tape.constant(odd);
    const std::array<ReducedColumn<double>, 3> with_metric{
        {{part.var(), Per::none}, {metric, Per::min}, {metric, Per::max}}};
    const auto found = masked_reduce<double>(with_metric, part.mask_var(), {}, part.packing);
    CHECK(std::isnan(found[1].item()));
    CHECK(std::isnan(found[2].item()));
  }
}

}  // namespace losstape::testing
