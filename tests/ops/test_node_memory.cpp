// SPDX-License-Identifier: Apache-2.0
// What holds for every node and loss about the caller's slices, repeated backwards and memory.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/ops/node_table.h"
#include "tests/support/allocations.h"

namespace losstape::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Fixture {
  std::vector<Matrix> x;
  Matrix seed;
  Run<float> run;

  Fixture(const Sample& sample, const Batch& batch, const Layout& layout)
      : x(sample.values(batch)), seed(upstream_of(sample, batch)), run(sample, batch, x, seed, layout) {}

  [[nodiscard]] std::vector<Matrix> slices() {
    std::vector<Matrix> copies;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const View view = run.slice(i).view();
      Matrix& copy = copies.emplace_back(view.rows, view.cols);
      for (Index r = 0; r < view.rows; ++r) {
        for (Index c = 0; c < view.cols; ++c) copy(r, c) = view.get<double>(r, c);
      }
    }
    return copies;
  }
};

template <class F>
void for_cases(const F& f) {
  for (const Sample& sample : samples()) {
    for (const Batch& batch : small_batches()) {
      CAPTURE(sample.title());
      CAPTURE(batch.name);
      f(sample, batch);
    }
  }
}

std::string slice_difference(const std::vector<Matrix>& a, const std::vector<Matrix>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::string found = difference(a[i], b[i]);
    if (!found.empty()) return "slice " + std::to_string(i) + " " + found;
  }
  return {};
}

}  // namespace

TEST_CASE("a second backward gives the same bits, into slices that hold NaN before each") {
  for_cases([](const Sample& sample, const Batch& batch) {
    Fixture f(sample, batch, {});
    f.run.step();
    const std::vector<Matrix> first = f.slices();
    f.run.backward();
    CHECK(slice_difference(first, f.slices()) == "");
    for (std::size_t i = 0; i < f.x.size(); ++i) f.run.slice(i).fill(kNan);
    f.run.backward();
    CHECK(slice_difference(first, f.slices()) == "");
    f.run.backward(2);
    f.run.backward();
    CHECK(slice_difference(first, f.slices()) == "");
  });
}

TEST_CASE("a doubled upstream doubles every entry of the gradient exactly") {
  for_cases([](const Sample& sample, const Batch& batch) {
    Fixture f(sample, batch, {});
    f.run.step();
    std::vector<Matrix> first = f.slices();
    for (Matrix& slice : first) slice *= 2;
    f.run.backward(2);
    CHECK(slice_difference(first, f.slices()) == "");
  });
}

TEST_CASE("accumulate adds to what a slice holds, and leaves rows without gradient alone") {
  for_cases([](const Sample& sample, const Batch& batch) {
    Fixture plain(sample, batch, {});
    plain.run.step();
    const std::vector<Matrix> once = plain.slices();
    Fixture f(sample, batch, {.grad = Grad::accumulate});
    for (std::size_t i = 0; i < f.x.size(); ++i) f.run.slice(i).fill(0.625);
    f.run.step();
    const std::vector<Matrix> added = f.slices();
    for (std::size_t i = 0; i < once.size(); ++i) {
      for (Index at = 0; at < once[i].size(); ++at) {
        // The target's entry is formed in fp64 and rounded with its sum: within an ulp of the fp32 sum of the two.
        const double right = 0.625 + once[i].data()[at];
        const double found = added[i].data()[at];
        if (once[i].data()[at] == 0) {
          REQUIRE(found == 0.625);
        } else {
          REQUIRE(std::abs(found - right) <= std::ldexp(std::abs(right) + 0.625, -24) * 1.01);
        }
      }
    }
    // Over two steps from 0 it is twice the gradient of one, but for the order in which contributions add up.
    Fixture twice(sample, batch, {.grad = Grad::accumulate});
    twice.run.step();
    twice.run.step();
    std::vector<Matrix> doubled = once;
    for (Matrix& slice : doubled) slice *= 2;
    for (std::size_t i = 0; i < once.size(); ++i) CHECK(far_from(twice.slices()[i], doubled[i], 0x1p-22, "sum") == "");
  });
}

TEST_CASE("zeroed slices give the gradient of overwritten ones, in every backward") {
  for_cases([](const Sample& sample, const Batch& batch) {
    Fixture plain(sample, batch, {});
    plain.run.step();
    const std::vector<Matrix> right = plain.slices();
    Fixture f(sample, batch, {.grad = Grad::zeroed});
    f.run.step();
    const std::vector<Matrix> found = f.slices();
    for (std::size_t i = 0; i < right.size(); ++i) CHECK(far_from(found[i], right[i], 0, "gradient") == "");
    f.run.backward(-3);
    f.run.backward();
    CHECK(slice_difference(right, f.slices()) == "");
  });
}

TEST_CASE("the sign and size of an upstream reach the gradient") {
  for_cases([](const Sample& sample, const Batch& batch) {
    Fixture f(sample, batch, {});
    f.run.step();
    std::vector<Matrix> turned = f.slices();
    for (Matrix& slice : turned) slice *= -0.5;
    f.run.backward(-0.5);
    const std::vector<Matrix> found = f.slices();
    for (std::size_t i = 0; i < turned.size(); ++i) CHECK(far_from(found[i], turned[i], 0, "gradient") == "");
  });
}

TEST_CASE("an upstream of zeros gives exact zeros everywhere, whatever the inputs hold") {
  for_cases([](const Sample& sample, const Batch& batch) {
    Fixture f(sample, batch, {});
    f.run.record();
    f.run.backward(0);
    for (const Matrix& slice : f.slices()) CHECK((slice.array() == 0).all());
  });
}

TEST_CASE("from the second step on nothing is allocated") {
  for_cases([](const Sample& sample, const Batch& batch) {
    Fixture f(sample, batch, {.threads = 2, .audit = Audit::off});
    f.run.step();
    const auto steps = allocations_in([&] {
      f.run.step();
      f.run.backward();
      f.run.step();
    });
    CHECK(steps == 0);
  });
}

TEST_CASE("from the second step on nothing is allocated on any of several ranks") {
  const Batch& batch = context_batch();
  for (const Sample& sample : samples()) {
    if (!sample.over_context) continue;
    CAPTURE(sample.title());
    const std::vector<Matrix> x = sample.values(batch);
    const Matrix seed = upstream_of(sample, batch);
    std::size_t before = 0;
    std::size_t after = 0;
    threads::run(4, [&](Communicator& world) {
      const auto tensor = world.split(world.rank() / 2, world.rank());
      const auto context = world.split(world.rank() % 2, world.rank());
      Run<float> run(sample, batch, x, seed, {.cuts = {3}, .context_ranks = 2, .audit = Audit::off}, *tensor, *context);
      run.step();
      run.step();
      world.barrier();
      if (world.rank() == 0) before = allocations();
      world.barrier();
      run.step();
      run.step();
      world.barrier();
      if (world.rank() == 0) after = allocations();
      world.barrier();
    });
    CHECK(after - before == 0);
  }
}

}  // namespace losstape::testing
