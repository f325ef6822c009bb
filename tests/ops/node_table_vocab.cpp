// SPDX-License-Identifier: Apache-2.0
// Samples of vocab_stats: each output by itself, all together, every option.
#include "ops/token_map.h"
#include "ops/vocab_stats.h"
#include "tests/ops/node_table.h"

namespace losstape::testing {
namespace {

// A user's node, to bring K gathered columns to one: y(r) = Σ_k (k + 1) x(r, k).
struct WeighColumns {
  static constexpr auto name = "weigh_columns";
  void forward(auto& c) const {
    const auto x = c.in(0);
    for (Index r = 0; r < x.rows(); ++r) {
      double sum = 0;
      for (Index k = 0; k < x.cols(); ++k) sum += static_cast<double>(k + 1) * static_cast<double>(x(r, k));
      c.out(0).write(r, sum);
    }
  }
  void backward(auto& c) const {
    const auto dy = c.dout(0);
    const auto dx = c.grad(0);
    for (Index r = 0; r < dx.rows(); ++r) {
      for (Index k = 0; k < dx.cols(); ++k) dx.write(r, k, static_cast<double>(k + 1) * static_cast<double>(dy(r)));
    }
  }
};

// The part of a batch's logits that has any meaning, and the adjoints of its rows.
struct Rows {
  const Batch& batch;
  Matrix logits;  // [tokens, vocab]
  std::vector<Index> targets;
  reference::Ids ids;
  std::vector<bool> real;

  Rows(const Batch& of, const Matrix& x) : batch(of), logits(x.topRows(of.tokens()).leftCols(of.vocab)) {
    targets = of.targets();
    targets.resize(std::size_t(of.tokens()));
    ids.resize(of.tokens(), Batch::kGathered);
    for (Index g = 0; g < of.tokens(); ++g) {
      real.push_back(of.is_real(g));
      for (Index k = 0; k < Batch::kGathered; ++k) {
        ids(g, k) = real.back() ? of.gathered[std::size_t(g * Batch::kGathered + k)] : 0;
      }
    }
  }
  // x where a row is needed, else 0.
  [[nodiscard]] Matrix where(const std::vector<bool>& needed, const Matrix& x) const {
    Matrix y = x;
    for (Index g = 0; g < y.rows(); ++g) {
      if (!needed[std::size_t(g)]) y.row(g).setZero();
    }
    return y;
  }
  // A gradient of the meaningful part as one of all stored columns.
  [[nodiscard]] Matrix widened(const Matrix& g) const {
    Matrix all = Matrix::Zero(batch.tokens(), batch.stored);
    all.leftCols(batch.vocab) = g;
    return all;
  }
};

Sample vocab_sample(const std::string& name, auto record, auto truth) {
  Sample sample;
  sample.node = "vocab_stats";
  sample.name = name;
  sample.inputs = {Domain::logits};
  sample.output = Domain::token;
  recorded_by(sample, [record](auto& /*tape*/, auto x, const Env& env) {
    return Made<typename decltype(x)::value_type::Real>{record(x[0], env)};
  });
  sample.values = [](const Batch& batch) { return std::vector<Matrix>{batch.logits}; };
  sample.truth = [truth](const Batch& batch, std::span<const Matrix> x, const Matrix& seed) {
    return truth(Rows(batch, x[0]), seed);
  };
  return sample;
}

VocabStatsOptions with_chunks(const Env& env, VocabStatsOptions options) {
  options.chunk_rows = env.chunk_rows;
  return options;
}

View gathered_view(const Batch& batch) { return View(batch.gathered.data(), batch.tokens(), Batch::kGathered); }

Truth target_truth(const Rows& rows, const Matrix& seed, double temperature) {
  return {reference::logprob(rows.logits, rows.targets, temperature),
          {rows.widened(reference::logprob_gradient(rows.logits, rows.targets, seed.col(0), temperature))}};
}

void add_logprob_samples(std::vector<Sample>& table) {
  table.push_back(vocab_sample(
      "log-prob",
      [](auto z, const Env& env) {
        return vocab_stats(z, env.packing, env.batch.ids, env.shard, with_chunks(env, {})).logprob;
      },
      [](const Rows& rows, const Matrix& seed) { return target_truth(rows, seed, 1); }));
  table.push_back(vocab_sample(
      "log-prob at temperature 0.7",
      [](auto z, const Env& env) {
        return vocab_stats(z, env.packing, env.batch.ids, env.shard, with_chunks(env, {.temperature = 0.7})).logprob;
      },
      [](const Rows& rows, const Matrix& seed) { return target_truth(rows, seed, 0.7); }));
  table.push_back(vocab_sample(
      "log-prob with ignored ids",
      [](auto z, const Env& env) {
        return vocab_stats(z, env.packing, env.batch.ids, env.shard, with_chunks(env, {.ignore_index = 2})).logprob;
      },
      [](Rows rows, const Matrix& seed) {
        for (Index& target : rows.targets) target = target == 2 ? -1 : target;
        return target_truth(rows, seed, 1);
      }));
  table.push_back(vocab_sample(
      "log-prob of explicit targets",
      [](auto z, const Env& env) {
        return vocab_stats(z, env.batch.explicit_targets, env.shard, with_chunks(env, {})).logprob;
      },
      [](const Rows& rows, const Matrix& seed) { return target_truth(rows, seed, 1); }));
  table.back().over_context = false;
  table.back().output = Domain::logits;
}

void add_extra_samples(std::vector<Sample>& table) {
  table.push_back(vocab_sample(
      "entropy at temperature 1.3",
      [](auto z, const Env& env) {
        return vocab_stats(z, env.packing, env.batch.ids, env.shard, with_chunks(env, {.temperature = 1.3, .entropy = true}))
            .entropy;
      },
      [](const Rows& rows, const Matrix& seed) {
        const Matrix needed = rows.where(rows.real, seed);
        return Truth{rows.where(rows.real, reference::entropy(rows.logits, 1.3)),
                     {rows.widened(reference::entropy_gradient(rows.logits, needed.col(0), 1.3))}};
      }));
  table.push_back(vocab_sample(
      "log-sum",
      [](auto z, const Env& env) {
        return vocab_stats(z, env.packing, env.batch.ids, env.shard, with_chunks(env, {.lse = true})).lse;
      },
      [](const Rows& rows, const Matrix& seed) {
        const Matrix needed = rows.where(rows.real, seed);
        return Truth{rows.where(rows.real, reference::lse(rows.logits)),
                     {rows.widened(reference::lse_gradient(rows.logits, needed.col(0)))}};
      }));
  table.push_back(vocab_sample(
      "gathered columns, repeated ids, chosen rows",
      [](auto z, const Env& env) {
        const VocabStatsOptions options{.gathered = gathered_view(env.batch), .rows = env.batch.extra_rows};
        return vocab_stats(z, env.packing, env.batch.ids, env.shard, with_chunks(env, options)).gathered;
      },
      [](const Rows& rows, const Matrix& seed) {
        std::vector<bool> needed = rows.real;
        for (std::size_t g = 0; g < needed.size(); ++g) needed[g] = needed[g] && rows.batch.extra_rows[g] != 0;
        const Matrix adjoint = rows.where(needed, seed);
        return Truth{rows.where(needed, reference::gathered(rows.logits, rows.ids)),
                     {rows.widened(reference::gathered_gradient(rows.logits, rows.ids, adjoint))}};
      }));
}

void add_combined_sample(std::vector<Sample>& table) {
  table.push_back(vocab_sample(
      "all outputs together",
      [](auto z, const Env& env) {
        const VocabStatsOptions options{
            .temperature = 0.9, .entropy = true, .lse = true, .gathered = gathered_view(env.batch)};
        const auto s = vocab_stats(z, env.packing, env.batch.ids, env.shard, with_chunks(env, options));
        const auto columns = z.tape->record(WeighColumns{}, {s.gathered}, Shape{s.gathered.rows(), 1});
        return token_map([](auto l, auto H, auto lse, auto k) { return 0.3 * l + 0.7 * H - 0.2 * lse + k; }, s.logprob,
                         s.entropy, s.lse, columns);
      },
      [](const Rows& rows, const Matrix& seed) {
        const double T = 0.9;
        const Matrix needed = rows.where(rows.real, seed);
        const reference::Vector adjoint = needed.col(0);
        Matrix of_columns(rows.batch.tokens(), Batch::kGathered);
        const Matrix gathered = reference::gathered(rows.logits, rows.ids, T);
        Matrix y = 0.7 * reference::entropy(rows.logits, T) - 0.2 * reference::lse(rows.logits, T);
        for (Index k = 0; k < Batch::kGathered; ++k) {
          of_columns.col(k) = double(k + 1) * adjoint;
          y += double(k + 1) * gathered.col(k);
        }
        const Matrix g = reference::logprob_gradient(rows.logits, rows.targets, 0.3 * seed.col(0), T) +
                         reference::entropy_gradient(rows.logits, 0.7 * adjoint, T) +
                         reference::lse_gradient(rows.logits, -0.2 * adjoint, T) +
                         reference::gathered_gradient(rows.logits, rows.ids, of_columns, T);
        return Truth{rows.where(rows.real, y) + 0.3 * reference::logprob(rows.logits, rows.targets, T), {rows.widened(g)}};
      }));
}

}  // namespace

void add_vocab_samples(std::vector<Sample>& table) {
  add_logprob_samples(table);
  add_extra_samples(table);
  add_combined_sample(table);
}

}  // namespace losstape::testing
