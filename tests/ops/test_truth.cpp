// SPDX-License-Identifier: Apache-2.0
// The promise on truth: log-probs, entropies and gradients of adversarial rows against the fp64 oracle, within stated
// bounds.
#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "distributed/threads.h"
#include "ops/vocab_stats.h"
#include "tests/ops/adversarial.h"
#include "tests/ops/sample.h"
#include "tests/support/random.h"

namespace losstape::testing {
namespace {

struct Adjoints {
  double target;
  double entropy;
  double gathered;
};

// Rows as a matrix of one dtype, with targets and two gathered columns each.
struct Problem {
  std::vector<AdversarialRow> rows;
  Matrix logits;
  std::vector<std::int64_t> targets;
  std::vector<std::int64_t> ids;  // [T, 2]
  std::vector<RowTruth> truth;
  double temperature;

  Problem(Index vocab, DType dtype, double huge, double T) : rows(adversarial_rows(vocab, huge)), temperature(T) {
    logits.resize(Index(rows.size()), vocab);
    Random random(6);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (Index j = 0; j < vocab; ++j) logits(Index(r), j) = rows[r].logits[std::size_t(j)];
      targets.push_back(rows[r].target);
      // The largest column, and any that is there.
      Index top = 0;
      logits.row(Index(r)).maxCoeff(&top);
      Index any = random.below(vocab);
      while (!std::isfinite(logits(Index(r), any))) any = (any + 1) % vocab;
      ids.insert(ids.end(), {top, any});
    }
    logits = rounded(logits, dtype);
    for (Index r = 0; r < logits.rows(); ++r) truth.emplace_back(logits, r, T);
  }
};

// What the ranks found together.
struct Found {
  Matrix logprob, entropy, gathered, gradient;
};

// A scalar of the three outputs whose adjoints are the wanted ones: a node that only seeds.
struct Seed {
  static constexpr auto name = "seed";
  Adjoints adjoints;
  void forward(auto& c) const { c.out(0).write(0, 0.0); }
  void backward(auto& c) const {
    const std::array<double, 3> g{adjoints.target, adjoints.entropy, adjoints.gathered};
    for (std::size_t i = 0; i < 3; ++i) {
      const auto dx = c.grad(i);
      for (Index r = 0; r < dx.rows(); ++r) {
        for (Index k = 0; k < dx.cols(); ++k) dx.write(r, k, k == 0 ? g[i] : -0.5 * g[i]);
      }
    }
  }
};

template <class R>
Found run(const Problem& problem, DType dtype, int ranks, const Adjoints& adjoints) {
  const Index T = problem.logits.rows();
  const Index V = problem.logits.cols();
  Found found{Matrix(T, 1), Matrix(T, 1), Matrix(T, 2), Matrix(T, V)};
  std::mutex merging;
  threads::run(ranks, [&](Communicator& group) {
    const VocabShard shard = VocabShard::even(group, V);
    Buffer value(T, shard.width(), dtype);
    Buffer slice(T, shard.width(), dtype_of<R>);
    for (Index r = 0; r < T; ++r) {
      for (Index c = 0; c < shard.width(); ++c) value.set(r, c, problem.logits(r, shard.begin + c));
    }
    BasicTape<R> tape({.threads = ranks == 1 ? 2 : 1, .audit = Audit::unwritten_rows});
    const auto z = tape.input(value.view(), slice.mutable_view());
    const auto s =
        vocab_stats(z, problem.targets, shard,
                    {.temperature = problem.temperature, .entropy = true, .gathered = View(problem.ids.data(), T, 2)});
    tape.backward(tape.record(Seed{adjoints}, {s.logprob, s.entropy, s.gathered}, Shape{1, 1}));
    const std::scoped_lock lock(merging);
    for (Index r = 0; r < T; ++r) {
      found.logprob(r, 0) = tape.value(s.logprob).template get<double>(r);
      found.entropy(r, 0) = tape.value(s.entropy).template get<double>(r);
      for (Index k = 0; k < 2; ++k) found.gathered(r, k) = tape.value(s.gathered).template get<double>(r, k);
      for (Index c = 0; c < shard.width(); ++c) found.gradient(r, shard.begin + c) = slice.get(r, c);
    }
  });
  return found;
}

// The right gradient, and the size of its terms, column by column.
void check_gradient(const Problem& problem, Index r, const Found& found, const Adjoints& g, const TruthBounds& bounds,
                    Worst& worst) {
  const RowTruth& truth = problem.truth[std::size_t(r)];
  const double T = problem.temperature;
  const double wide_sum = g.target + g.gathered - 0.5 * g.gathered;
  const double sizes = std::abs(g.target) + 1.5 * std::abs(g.gathered);
  for (Index j = 0; j < problem.logits.cols(); ++j) {
    const double log_p = truth.log_p[std::size_t(j)];
    const double p = truth.p[std::size_t(j)];
    double own = 0;
    double own_size = 0;
    const auto add_own = [&](std::int64_t column, double adjoint) {
      if (column != j) return;
      own += adjoint;
      own_size += std::abs(adjoint);
    };
    add_own(problem.targets[std::size_t(r)], g.target);
    add_own(problem.ids[std::size_t(2 * r)], g.gathered);
    add_own(problem.ids[std::size_t(2 * r + 1)], -0.5 * g.gathered);
    const double h_form = p == 0 ? 0 : p * (log_p + truth.entropy);
    const double right = (own * truth.rest[std::size_t(j)] - p * (wide_sum - own) - g.entropy * h_form) / T;
    const double term =
        (own_size + sizes * p + (p == 0 ? 0 : std::abs(g.entropy) * p * (std::abs(log_p) + truth.entropy))) / T;
    const double d = p == 0 ? 0 : truth.distance[std::size_t(j)];
    // With a temperature the log-sum and the entropy, from which every column's gradient is made, have their own distances.
    const double others = T == 1 ? 0 : std::max(truth.sum_distance, truth.entropy_distance);
    const double lost = bounds.smallest * (1 + d + others) * (1 + sizes + std::abs(g.entropy)) / T;
    worst.take(worst.gradient, std::abs(found.gradient(r, j) - right),
               (bounds.gradient + bounds.distance * (d + others)) * bounds.epsilon * term + lost, term,
               [&] { return problem.rows[std::size_t(r)].name + " gradient of column " + std::to_string(j); });
  }
}

void check(const Problem& problem, const Found& found, const Adjoints& adjoints, const TruthBounds& bounds, Worst& worst) {
  const double tempered = problem.temperature == 1 ? 0 : bounds.distance * bounds.epsilon;
  for (Index r = 0; r < problem.logits.rows(); ++r) {
    const RowTruth& truth = problem.truth[std::size_t(r)];
    const std::string& name = problem.rows[std::size_t(r)].name;
    const auto check_log_p = [&](double value, std::int64_t column) {
      const double right = truth.log_p[std::size_t(column)];
      worst.take(worst.logprob, std::abs(value - right),
                 (bounds.logprob + tempered * truth.sum_distance) * std::abs(right) + bounds.smallest, right,
                 [&] { return name + " log p"; });
    };
    check_log_p(found.logprob(r, 0), problem.targets[std::size_t(r)]);
    for (Index k = 0; k < 2; ++k) check_log_p(found.gathered(r, k), problem.ids[std::size_t(2 * r + k)]);
    worst.take(worst.entropy, std::abs(found.entropy(r, 0) - truth.entropy),
               (bounds.entropy + tempered * truth.entropy_distance) * truth.entropy +
                   bounds.smallest * (1 + truth.entropy_distance),
               truth.entropy, [&] { return name + " entropy"; });
    check_gradient(problem, r, found, adjoints, bounds, worst);
  }
}

template <class R>
void check_all(Index vocab, DType dtype, double huge, const TruthBounds& bounds, Worst& worst) {
  const std::array<Adjoints, 4> adjoints{{{1.5, 0, 0}, {0, -0.75, 0}, {0, 0, 2}, {-0.625, 1.25, 0.375}}};
  for (const double T : {1.0, 0.7, 1.9}) {
    const Problem problem(vocab, dtype, huge, T);
    for (const int ranks : {1, 2, 3, 8}) {
      for (const Adjoints& g : adjoints) {
        check(problem, run<R>(problem, dtype, ranks, g), g, bounds, worst);
        INFO(std::string(name(dtype)), ", V = ", vocab, ", T = ", T, ", ranks = ", ranks);
        CHECK(worst.where == "");
        worst.where.clear();
      }
    }
  }
}

void report(const std::string& what, const Worst& worst) {
  MESSAGE(what << ": of their bounds, log p used " << worst.logprob << ", entropy " << worst.entropy << ", gradients "
               << worst.gradient);
}

}  // namespace

TEST_CASE("log-probs, entropies and gradients of f32 logits are true within the promised bounds") {
  Worst worst;
  for (const Index vocab : {Index{1}, Index{2}, Index{3}, Index{31}, Index{9001}}) {
    check_all<float>(vocab, DType::f32, 1e38, TruthBounds(), worst);
  }
  report("f32", worst);
}

TEST_CASE("log-probs, entropies and gradients of bf16 logits are true within the promised bounds") {
  Worst worst;
  for (const Index vocab : {Index{1}, Index{2}, Index{17}, Index{9001}}) {
    check_all<float>(vocab, DType::bf16, 1e38, TruthBounds(), worst);
  }
  report("bf16", worst);
}

TEST_CASE("log-probs, entropies and gradients of f16 logits are true within the promised bounds") {
  Worst worst;
  for (const Index vocab : {Index{1}, Index{2}, Index{17}, Index{9001}}) {
    check_all<float>(vocab, DType::f16, 65504, TruthBounds(), worst);
  }
  report("f16", worst);
}

TEST_CASE("log-probs, entropies and gradients on the fp64 tape are true to 1e-11") {
  Worst worst;
  for (const Index vocab : {Index{1}, Index{2}, Index{17}, Index{9001}}) {
    check_all<double>(vocab, DType::f64, 1e150, fp64_bounds(), worst);
  }
  report("f64", worst);
}

TEST_CASE("70000 equal columns of a 16-bit type have log p, entropy and gradients within the promised bounds") {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    CAPTURE(name(dtype));
    const Index V = 70000;
    const std::vector<std::int64_t> target{69999};
    for (const int ranks : {1, 3}) {
      threads::run(ranks, [&](Communicator& group) {
        const VocabShard shard = VocabShard::even(group, V);
        Buffer value(1, shard.width(), dtype);
        value.fill(0.5);
        std::vector<float> slice(std::size_t(shard.width()));
        Tape tape;
        const Var z = tape.input(value.view(), MutableView(slice.data(), 1, shard.width()));
        const auto s = vocab_stats(z, target, shard, {.entropy = true});
        CHECK(std::abs(s.logprob.item() + std::log(7e4)) <= 2e-6 * std::log(7e4));
        CHECK(std::abs(s.entropy.item() - std::log(7e4)) <= 1e-5 * std::log(7e4));
        tape.backward(s.logprob);
        for (Index j = 0; j < shard.width(); ++j) {
          const double right = shard.begin + j == 69999 ? 1 - 1 / 7e4 : -1 / 7e4;
          REQUIRE(std::abs(slice[std::size_t(j)] - right) <= 32 * 0x1p-24 * std::abs(right));
        }
      });
    }
  }
}

}  // namespace losstape::testing
