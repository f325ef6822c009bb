// SPDX-License-Identifier: Apache-2.0
// Calls that every node must refuse, and what the message must say.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "ops/losses/nll.h"
#include "ops/losses/policy_loss.h"
#include "ops/masked_reduce.h"
#include "ops/sequence.h"
#include "ops/token_map.h"
#include "ops/vocab_stats.h"
#include "tests/ops/node_table.h"

namespace losstape::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Call = std::function<void(Tape& tape, Var z, const Env& env)>;

Var logprob(Var z, const Env& env) { return vocab_stats(z, env.packing, env.batch.ids, env.shard).logprob; }

Call with_options(auto change) {
  return [change](Tape& /*tape*/, Var z, const Env& env) {
    VocabStatsOptions options;
    change(options, env);
    (void)vocab_stats(z, env.packing, env.batch.ids, env.shard, options);
  };
}

Call with_id(Index at, std::int64_t id) {
  return [at, id](Tape& /*tape*/, Var z, const Env& env) {
    std::vector<std::int64_t> ids = env.batch.ids;
    ids[std::size_t(at)] = id;
    (void)vocab_stats(z, env.packing, ids, env.shard);
  };
}

void add_label_errors(std::vector<ErrorSample>& table) {
  const char* node = "vocab_stats";
  table.push_back({node, "a label past the vocabulary", {node, "input_ids", "row 2", "[0, 5)", "99"}, with_id(2, 99)});
  table.push_back({node, "a negative label", {node, "input_ids", "row 1", "-1"}, with_id(1, -1)});
  table.push_back({node, "a label that would wrap in 32 bits", {"4294967297"}, with_id(1, (std::int64_t{1} << 32) + 1)});
  table.push_back({node, "the label count itself", {"input_ids", "row 3", "5"}, with_id(3, 5)});
  table.push_back({node, "a bad label on one rank alone", {node, "input_ids", "row 2", "99"}, with_id(2, 99)});
  table.back().one_rank_only = true;
  table.back().right = [](Tape& /*tape*/, Var z, const Env& env) { (void)logprob(z, env); };
  table.push_back({node,
                   "a gathered id past the vocabulary",
                   {"gathered ids", "row 1", "17"},
                   with_options([](VocabStatsOptions& options, const Env& env) {
                     static thread_local std::vector<std::int64_t> ids;
                     ids.assign(std::size_t(env.batch.tokens()) * 2, 0);
                     ids[3] = 17;
                     options.gathered = View(ids.data(), env.batch.tokens(), 2);
                   })});
}

void add_option_errors(std::vector<ErrorSample>& table) {
  const char* node = "vocab_stats";
  for (const double T : {0.0, -1.0, kNan, std::numeric_limits<double>::infinity()}) {
    table.push_back(
        {node, "temperature " + std::to_string(T), {node, "temperature"}, with_options([T](auto& options, auto&) {
           options.temperature = T;
         })});
  }
  table.push_back(
      {node, "a negative chunk", {"chunk_rows", "-1"}, with_options([](auto& options, auto&) { options.chunk_rows = -1; })});
  table.push_back({node, "gathered ids of too few rows", {"gathered ids", "i64"}, with_options([](auto& options, auto& env) {
                     options.gathered = View(env.batch.gathered.data(), 2, Batch::kGathered);
                   })});
  table.push_back({node, "a row mask of too few rows", {"row mask"}, with_options([](auto& options, auto& env) {
                     options.rows = View(env.batch.extra_rows.data(), 2);
                   })});
  table.push_back({node, "labels of a float type", {"input_ids", "f64"}, [](Tape& /*tape*/, Var z, const Env& env) {
                     (void)vocab_stats(z, env.packing, env.batch.prev, env.shard);
                   }});
  table.push_back({node, "too few labels", {"input_ids", "[7, 1]", "[3, 1]"}, [](Tape& /*tape*/, Var z, const Env& env) {
                     (void)vocab_stats(z, env.packing, View(env.batch.ids.data(), 3), env.shard);
                   }});
  table.push_back({node, "explicit targets of another length", {"targets"}, [](Tape& /*tape*/, Var z, const Env& env) {
                     (void)vocab_stats(z, View(env.batch.explicit_targets.data(), 3), env.shard);
                   }});
}

void add_layout_errors(std::vector<ErrorSample>& table) {
  const char* node = "vocab_stats";
  table.push_back({node, "logits narrower than the shard", {node, "columns"}, [](Tape& tape, Var /*z*/, const Env& env) {
                     static const std::vector<float> memory(64, 0.0F);
                     const Var narrow = tape.constant(View(memory.data(), 7, env.shard.width() + 1));
                     (void)vocab_stats(narrow, env.packing, env.batch.ids, env.shard);
                   }});
  table.push_back({node, "column-major logits", {node, "row-major", "Eigen"}, [](Tape& tape, Var /*z*/, const Env& env) {
                     static const std::vector<float> memory(64, 0.0F);
                     // At least two columns on every rank, whatever its shard.
                     const VocabShard shard = VocabShard::even(env.shard.group, 8);
                     const Var turned = tape.constant(View(memory.data(), 7, shard.width(), 1, 7));
                     (void)vocab_stats(turned, env.packing, env.batch.ids, shard);
                   }});
  table.push_back({node, "integers for logits", {node, "floating-point"}, [](Tape& tape, Var /*z*/, const Env& env) {
                     static const std::vector<std::int32_t> memory(64, 0);
                     const Var numbers = tape.constant(View(memory.data(), 7, env.shard.width()));
                     (void)vocab_stats(numbers, env.packing, env.batch.ids, env.shard);
                   }});
  table.push_back(
      {node, "shards that leave columns to no rank", {"tile", "held by no rank"}, [](Tape& /*tape*/, Var z, const Env& env) {
         const VocabShard short_by_one =
             VocabShard::range(env.shard.group, env.shard.begin, env.shard.end, env.batch.vocab + 1);
         (void)vocab_stats(z, env.packing, env.batch.ids, short_by_one);
       }});
  table.push_back(
      {node, "fewer rows than the pack", {node, "rows", "cu_seqlens_padded"}, [](Tape& /*tape*/, Var z, const Env& env) {
         Packing longer;
         const std::vector<int> offsets{0, 4, 9};
         longer.assign(offsets);
         const std::vector<std::int64_t> ids(9, 0);
         (void)vocab_stats(z, longer, ids, env.shard);
       }});
  table.push_back({node,
                   "an output that was not asked for",
                   {"entropy"},
                   [](Tape& /*tape*/, Var z, const Env& env) {
                     (void)exp(vocab_stats(z, env.packing, env.batch.ids, env.shard).entropy);
                   },
                   true});
}

void add_in_flight_errors(std::vector<ErrorSample>& table) {
  table.push_back({"vocab_stats",
                   "a packing assigned anew in flight",
                   {"packing", "assigned anew"},
                   [](Tape& tape, Var z, const Env& env) {
                     Packing packing;
                     env.batch.assign(packing);
                     const Var logp = vocab_stats(z, packing, env.batch.ids, env.shard).logprob;
                     env.batch.assign(packing);
                     const std::vector<float> seed(std::size_t(logp.rows()), 1.0F);
                     tape.backward(logp, seed);
                   },
                   true});
  table.push_back({"vocab_stats",
                   "an adjoint that is not finite",
                   {"vocab_stats", "adjoint that is not finite", "row 1"},
                   [](Tape& tape, Var z, const Env& env) {
                     const Var logp = logprob(z, env);
                     std::vector<float> seed(std::size_t(logp.rows()), 1.0F);
                     seed[1] = std::numeric_limits<float>::quiet_NaN();
                     tape.backward(logp, seed);
                   },
                   true});
}

// A column of the pack's rows, differentiated, of the log-probs.
void add_column_errors(std::vector<ErrorSample>& table) {
  table.push_back({"token_map",
                   "columns of two shapes",
                   {"token_map", "[7, 1]", "[2, 1]"},
                   [](Tape& tape, Var z, const Env& env) { (void)(logprob(z, env) + tape.constant(env.batch.sample_mask)); },
                   true});
  table.push_back({"token_map",
                   "a Var of another tape",
                   {"token_map", "another tape"},
                   [](Tape& /*tape*/, Var z, const Env& env) {
                     Tape other;
                     (void)(logprob(z, env) + other.constant(env.packing.to_predictions(env.batch.prev)));
                   },
                   true});
  const auto reduce = [&](const char* name, std::vector<std::string> pieces, auto call) {
    table.push_back({"masked_reduce", name, std::move(pieces), call, true});
  };
  reduce("a mask that is differentiated", {"masked_reduce", "mask"}, [](Tape& /*tape*/, Var z, const Env& env) {
    const Var logp = logprob(z, env);
    (void)masked_mean(logp, logp, env.packing);
  });
  reduce("a mask of sequences for tokens", {"masked_reduce", "[7, 1]", "[2, 1]"}, [](Tape& tape, Var z, const Env& env) {
    (void)masked_mean(logprob(z, env), tape.constant(env.batch.sample_mask), env.packing);
  });
  reduce("a negative count", {"masked_reduce", "counts", "-3"}, [](Tape& tape, Var z, const Env& env) {
    (void)masked_mean(logprob(z, env), token_mask(tape, env), env.packing, {.count = -3});
  });
  reduce("a mask that is not finite", {"masked_reduce", "finite mask", "row"}, [](Tape& tape, Var z, const Env& env) {
    static thread_local std::vector<double> mask;
    mask = env.batch.token_mask;
    mask[2] = kNan;
    (void)masked_mean(logprob(z, env), tape.constant(env.packing.to_predictions(mask)), env.packing);
  });
  reduce("an extremum as the loss", {"masked_reduce", "extremum"}, [](Tape& tape, Var z, const Env& env) {
    const std::array<ReducedColumn<float>, 1> column{{{logprob(z, env), Per::min}}};
    (void)masked_reduce<float>(column, token_mask(tape, env), {}, env.packing);
  });
  reduce("a value that is not finite where it counts", {"masked_reduce", "finite values", "token_map made it", "row"},
         [](Tape& tape, Var z, const Env& env) {
           const Var endless = logprob(z, env) / 0.0;
           static const std::vector<double> all(7, 1.0);
           (void)masked_mean(endless, tape.constant(env.packing.to_predictions(all)), env.packing);
         });
  table.push_back({"sequence_sum",
                   "a column of sequences",
                   {"sequence_sum", "[7, 1]", "[2, 1]"},
                   [](Tape& tape, Var /*z*/, const Env& env) {
                     (void)sequence_sum(tape.constant(env.batch.sample_mask), token_mask(tape, env), env.packing);
                   },
                   true});
  table.push_back({"sequence_sum",
                   "a mask that is not finite",
                   {"sequence_sum", "finite mask", "row"},
                   [](Tape& tape, Var z, const Env& env) {
                     static thread_local std::vector<double> mask;
                     mask = env.batch.token_mask;
                     mask[2] = kNan;
                     (void)sequence_sum(logprob(z, env), tape.constant(env.packing.to_predictions(mask)), env.packing);
                   },
                   true});
  table.push_back({"sequence_mean",
                   "a mask that is differentiated",
                   {"sequence_mean", "mask"},
                   [](Tape& /*tape*/, Var z, const Env& env) {
                     const Var logp = logprob(z, env);
                     (void)sequence_mean(logp, logp, env.packing);
                   },
                   true});
  table.push_back({"spread",
                   "a column of tokens",
                   {"spread", "[2, 1]", "[7, 1]"},
                   [](Tape& /*tape*/, Var z, const Env& env) { (void)spread(logprob(z, env), env.packing); },
                   true});
}

// A loss over columns changed by `change`.
Call policy(auto change, const PolicyLossOptions& options = {}) {
  return [change, options](Tape& /*tape*/, Var z, const Env& env) {
    LossColumns columns = env.batch.columns();
    change(columns, env);
    (void)policy_loss(logprob(z, env), env.packing, columns, options);
  };
}

void add_loss_errors(std::vector<ErrorSample>& table) {
  const auto add = [&](const char* node, const char* name, std::vector<std::string> pieces, Call call) {
    table.push_back({node, name, std::move(pieces), std::move(call), true});
  };
  add("nll_loss", "no mask", {"nll_loss", "token_mask"},
      [](Tape& /*tape*/, Var z, const Env& env) { (void)nll_loss(logprob(z, env), env.packing, LossColumns{}); });
  add("nll_loss", "log-probs of another length", {"nll_loss", "log-probs", "[7, 1]"}, [](Tape& tape, Var, const Env& env) {
    (void)nll_loss(tape.constant(env.batch.sample_mask), env.packing, env.batch.columns());
  });
  add("policy_loss", "no advantages", {"policy_loss", "advantages"}, policy([](auto& c, auto&) { c.advantages = {}; }));
  add("policy_loss", "no previous log-probs", {"policy_loss", "prev_logprobs"},
      policy([](auto& c, auto&) { c.prev_logprobs = {}; }));
  add("policy_loss", "a penalty without reference", {"policy_loss", "reference_logprobs"},
      policy([](auto& c, auto&) { c.reference_logprobs = {}; }));
  add("policy_loss", "a sample mask of another length", {"policy_loss", "sample_mask", "[2, 1]", "[7, 1]"},
      policy([](auto& c, const Env& env) { c.sample_mask = env.batch.token_mask; }));
  add("policy_loss", "an advantage that is not finite where it counts", {"finite values", "nan", "row 1"},
      policy([](auto& c, const Env& env) {
        static thread_local std::vector<double> all;
        static thread_local std::vector<double> advantages;
        all.assign(7, 1.0);
        advantages = env.batch.advantages;
        advantages[2] = kNan;
        c.token_mask = all;
        c.advantages = advantages;
      }));
  const auto nothing = [](auto&, auto&) {};
  const auto refused = [&](const char* name, const char* piece, auto change) {
    PolicyLossOptions options;
    change(options);
    add("policy_loss", name, {"policy_loss", piece}, policy(nothing, options));
  };
  refused("a negative clip", "clip_low", [](auto& o) { o.clip_low = -0.1; });
  refused("a clip that is no number", "clip_high", [](auto& o) { o.clip_high = kNan; });
  refused("a dual clip of 1", "dual_clip", [](auto& o) { o.dual_clip = 1; });
  refused("a dual clip below 1", "dual_clip", [](auto& o) { o.dual_clip = 0.5; });
  refused("a penalty that is no number", "kl_penalty", [](auto& o) { o.kl_penalty = kNan; });
  refused("a negative KL clamp", "clamp", [](auto& o) { o.kl_clamps.output = -1; });
}

}  // namespace

const std::vector<ErrorSample>& error_samples() {
  static const std::vector<ErrorSample> table = [] {
    std::vector<ErrorSample> made;
    add_label_errors(made);
    add_option_errors(made);
    add_layout_errors(made);
    add_in_flight_errors(made);
    add_column_errors(made);
    add_loss_errors(made);
    return made;
  }();
  return table;
}

}  // namespace losstape::testing
