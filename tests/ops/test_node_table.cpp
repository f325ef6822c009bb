// SPDX-License-Identifier: Apache-2.0
// What holds for every node and loss of the table: right values, right gradients, and no layout that changes them.
#include <doctest/doctest.h>

#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/gradcheck.h"
#include "tests/ops/node_table.h"

namespace losstape::testing {
namespace {

struct Case {
  const Sample& sample;
  const Batch& batch;
  std::vector<Matrix> x;
  Matrix seed;

  Case(const Sample& of, const Batch& in, DType dtype = DType::f32)
      : sample(of), batch(in), x(of.values(in)), seed(upstream_of(of, in)) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (sample.inputs[i] == Domain::logits) x[i] = rounded(x[i], dtype);
    }
  }
  template <class R>
  [[nodiscard]] Outcome run(const Layout& layout) const {
    return evaluate<R>(sample, batch, x, seed, layout);
  }
};

template <class F>
void for_cases(const F& f) {
  for (const Sample& sample : samples()) {
    for (const Batch& batch : small_batches()) {
      CAPTURE(sample.title());
      CAPTURE(batch.name);
      f(Case(sample, batch));
    }
  }
}

void check_truth(const Case& c, const Outcome& found, double bound) {
  const Truth right = c.sample.truth(c.batch, c.x, c.seed);
  CHECK(found.faults == "");
  CHECK(far_from(found.y, right.y, bound, "y") == "");
  for (std::size_t i = 0; i < right.gradients.size(); ++i) {
    CHECK(far_from(found.gradients[i], right.gradients[i], bound, "gradient") == "");
  }
  REQUIRE(found.metrics.size() == right.metrics.size());
  for (std::size_t k = 0; k < right.metrics.size(); ++k) {
    CAPTURE(k);
    CHECK(far_from(Matrix::Constant(1, 1, found.metrics[k]), Matrix::Constant(1, 1, right.metrics[k]), 4 * bound,
                   "metric") == "");
  }
}

template <class F, std::size_t... I>
GradcheckReport check_gradient_of(const F& f, const std::vector<Matrix>& x, std::index_sequence<I...> /*inputs*/,
                                  const GradcheckOptions& options) {
  const std::array<View, sizeof...(I)> at{View(x[I])...};
  return gradcheck(f, at, options);
}

GradcheckReport check_gradient_of(const Case& c, const GradcheckOptions& options) {
  Packing packing;
  c.batch.assign(packing);
  const Env env{c.batch, packing, VocabShard::whole(c.batch.vocab, c.batch.stored)};
  const auto f = [&](auto& tape, auto... x) {
    using R = typename std::remove_cvref_t<decltype(tape)>::Real;
    const std::array<BasicVar<R>, sizeof...(x)> inputs{x...};
    return c.sample.record<R>()(tape, inputs, env).y;
  };
  if (c.x.size() == 1) return check_gradient_of(f, c.x, std::make_index_sequence<1>(), options);
  return check_gradient_of(f, c.x, std::make_index_sequence<3>(), options);
}

// The names that sources give their nodes: every string of a `static constexpr auto name = …;`, through a constant too.
std::set<std::string> node_names_of(const std::filesystem::path& folder) {
  std::set<std::string> names;
  const auto add_strings = [&](const std::string& text) {
    std::size_t at = 0;
    bool any = false;
    while ((at = text.find('"', at)) != std::string::npos) {
      const std::size_t end = text.find('"', at + 1);
      names.insert(text.substr(at + 1, end - at - 1));
      at = end + 1;
      any = true;
    }
    return any;
  };
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cpp") continue;
    std::ifstream file(entry.path());
    std::stringstream read;
    read << file.rdbuf();
    const std::string text = read.str();
    const std::string mark = "static constexpr auto name = ";
    for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
      const std::size_t begin = at + mark.size();
      const std::string value = text.substr(begin, text.find(';', begin) - begin);
      if (add_strings(value)) continue;
      const std::size_t constant = text.find(value + " = ");
      REQUIRE_MESSAGE(constant != std::string::npos, "a node's name that is not understood: ", value);
      REQUIRE(add_strings(text.substr(constant, text.find(';', constant) - constant)));
    }
  }
  return names;
}

// The losses: functions that return a BasicLossResult.
std::set<std::string> loss_names_of(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".h") continue;
    std::ifstream file(entry.path());
    const std::string mark = "BasicLossResult<R> ";
    for (std::string line; std::getline(file, line);) {
      const std::size_t at = line.find(mark);
      const std::size_t open = line.find('(');
      if (at == std::string::npos || open == std::string::npos) continue;
      names.insert(line.substr(at + mark.size(), open - at - mark.size()));
    }
  }
  return names;
}

}  // namespace

TEST_CASE("every node and every loss of ops stands in the table with a sample and an error sample") {
  std::set<std::string> names = node_names_of("ops");
  const std::set<std::string> losses = loss_names_of("ops/losses");
  REQUIRE(names.size() >= 6);
  REQUIRE(losses.size() >= 2);
  names.insert(losses.begin(), losses.end());
  const std::set<std::string> registered(registered_nodes().begin(), registered_nodes().end());
  CHECK(names == registered);
  for (const std::string& name : names) {
    CAPTURE(name);
    CHECK(std::any_of(samples().begin(), samples().end(), [&](const Sample& s) { return s.node == name; }));
    CHECK(std::any_of(error_samples().begin(), error_samples().end(), [&](const ErrorSample& s) { return s.node == name; }));
  }
}

TEST_CASE("every node gives its reference's value and gradient on the fp64 tape") {
  for_cases([](const Case& c) { check_truth(c, c.run<double>({.dtype = DType::f64}), 1e-12); });
}

TEST_CASE("every node gives its reference's value and gradient on the fp32 tape, for logits of every dtype") {
  for (const Sample& sample : samples()) {
    for (const Batch& batch : small_batches()) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        CAPTURE(sample.title());
        CAPTURE(batch.name);
        CAPTURE(name(dtype));
        const Case c(sample, batch, dtype);
        check_truth(c, c.run<float>({.dtype = dtype}), sample.fp32_bound);
        check_truth(c, c.run<double>({.dtype = dtype}), 1e-12);
      }
    }
  }
}

TEST_CASE("every gradient equals its difference quotients, what is stopped held fast") {
  for_cases([](const Case& c) {
    if (c.batch.poisoned) return;  // a difference needs finite neighbours
    const GradcheckReport report = check_gradient_of(c, {.fp32 = Fp32Check::compare});
    CHECK_MESSAGE(report, report.summary());
    CHECK_MESSAGE((report.stopped > 1e-6) == c.sample.stopped, report.summary());
    if (!c.sample.stopped) CHECK(report.stopped < 1e-8);
  });
}

TEST_CASE("gradients over a vocabulary of several tiles equal their differences along random directions") {
  Batch batch = wide_batch();
  for (Index at = 0; at < batch.logits.size(); ++at) {
    if (!std::isfinite(batch.logits.data()[at])) batch.logits.data()[at] = 1;
  }
  for (const Sample& sample : samples()) {
    if (sample.inputs[0] != Domain::logits) continue;
    CAPTURE(sample.title());
    Case c(sample, batch);
    const GradcheckReport report = check_gradient_of(c, {.directions = 2, .entries = 6});
    CHECK_MESSAGE(report, report.summary());
  }
}

TEST_CASE("chunks of any size change no bit") {
  for_cases([](const Case& c) {
    const Outcome whole = c.run<float>({});
    for (const Index chunk : {Index{1}, Index{2}, Index{5}, Index{1000}}) {
      CAPTURE(chunk);
      const Outcome chunked = c.run<float>({.chunk_rows = chunk});
      CHECK(difference(whole, chunked) == "");
      CHECK(chunked.faults == "");
    }
  });
}

TEST_CASE("any number of threads gives the same bits") {
  for_cases([](const Case& c) {
    const Outcome one = c.run<float>({});
    for (const int threads : {2, 3, 5, 8}) {
      CAPTURE(threads);
      CHECK(difference(one, c.run<float>({.threads = threads})) == "");
      CHECK(difference(one, c.run<float>({.chunk_rows = 3, .threads = threads})) == "");
    }
  });
  for (const Sample& sample : samples()) {
    CAPTURE(sample.title());
    const Case c(sample, wide_batch());
    const Outcome one = c.run<float>({});
    for (int threads = 2; threads <= 8; ++threads) CHECK(difference(one, c.run<float>({.threads = threads})) == "");
  }
}

TEST_CASE("the same step gives the same bits again") {
  for_cases([](const Case& c) { CHECK(difference(c.run<float>({}), c.run<float>({})) == ""); });
}

TEST_CASE("vocabulary shards of any widths give the reference's value and gradient, the same on every rank") {
  for_cases([](const Case& c) {
    const Index V = c.batch.stored;
    const std::vector<std::vector<Index>> splits{
        {V / 2},                           // 2 even ranks
        {1},                               // 2 uneven
        {0},                               // 2, the first empty
        {2, 2},                            // 3, the second empty
        {1, V - 1},                        // 3, the last inside the padding where there is any
        {0, 1, 2, 3, 3, V, V},             // 8, several empty
        {1, 1, 2, 3, V - 2, V - 1, V - 1}  // 8
    };
    for (const std::vector<Index>& cuts : splits) {
      CAPTURE(cuts.size());
      check_truth(c, c.run<float>({.cuts = cuts}), c.sample.fp32_bound);
      check_truth(c, c.run<double>({.dtype = DType::f64, .cuts = cuts}), 1e-12);
    }
  });
}

TEST_CASE("vocabulary shards that end off and on tiles give the reference's value and gradient") {
  for (const Sample& sample : samples()) {
    CAPTURE(sample.title());
    const Case c(sample, wide_batch());
    check_truth(c, c.run<float>({}), sample.fp32_bound);
    for (const std::vector<Index>& cuts : std::vector<std::vector<Index>>{{4096}, {4097}, {4095, 8192}, {1, 9001}}) {
      check_truth(c, c.run<float>({.cuts = cuts}), sample.fp32_bound);
      check_truth(c, c.run<double>({.dtype = DType::f64, .cuts = cuts}), 1e-12);
    }
  }
}

}  // namespace losstape::testing
