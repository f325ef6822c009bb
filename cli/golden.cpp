// SPDX-License-Identifier: Apache-2.0
// From a case's kind to what is computed, and from the comparison to a verdict.
#include "cli/golden.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <exception>
#include <initializer_list>
#include <limits>

#include "cli/evaluate.h"
#include "cli/nearest.h"
#include "cli/vocab_ops.h"
#include "engine/error.h"

namespace losstape::cli {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text;
}

void refuse_rounding(const View& logits, std::optional<DType> dtype) {
  if (!dtype || rounding_is_exact(logits, *dtype)) return;
  throw Unsupported(std::string("its ") + losstape::name(logits.dtype) + " logits are not exact in " +
                    losstape::name(*dtype));
}

void compare_scalars(const CaseFile& file, const Evaluation& evaluation, const Tolerance& tolerance,
                     Comparison& comparison) {
  if (file.has("loss")) comparison.scalar("loss", evaluation.loss, file.floats("loss", {1}).get<double>(0), tolerance);
  const Json metrics = file.json("metrics");
  if (!metrics.is_object()) throw DataError({"metrics", "a JSON object", in_quotes(metrics.dump()), file.path()});
  for (const auto& [name, value] : metrics.items()) {
    const double want = from_json_number(value);
    double got = std::numeric_limits<double>::quiet_NaN();  // of a metric that is not there
    for (const auto& [found, number] : evaluation.metrics) {
      if (found == name) got = number;
    }
    comparison.scalar("metric " + name, got, want, tolerance);
  }
}

// Rows that predict no token have a gradient of exactly 0, whatever the case says and whatever their logits hold.
void compare_packed(const CaseFile& file, const RecordedBatch& batch, const Evaluation& evaluation, Comparison& comparison) {
  const Tolerances tolerances = Tolerances::of(evaluation.real);
  compare_scalars(file, evaluation, tolerances.loss, comparison);
  const View got = evaluation.gradient.view();
  const View want = file.has("grad_logits") ? file.floats("grad_logits", {got.rows, got.cols}) : View();
  Packing packing;
  batch.lay_out(packing);
  for (Index r = 0; r < got.rows; ++r) {
    const bool target = r < packing.rows() && packing.has_target(r);
    if (target && want.data() == nullptr) continue;
    for (Index c = 0; c < got.cols; ++c) {
      const std::array<Index, 2> place{r, c};
      comparison.element("grad_logits", place, got.get<double>(r, c), target ? want.get<double>(r, c) : 0.0,
                         target ? tolerances.vocabulary : Tolerance{});
    }
  }
}

void compare_padded(const CaseFile& file, const RecordedBatch& batch, const Evaluation& evaluation, Comparison& comparison) {
  const Tolerance tolerance = Tolerances::of(evaluation.real).loss;
  compare_scalars(file, evaluation, tolerance, comparison);
  if (!file.has("grad_logprobs")) return;
  const Index S = batch.padded_length;
  const View want = file.floats("grad_logprobs", {batch.sequences, batch.logprobs.cols});
  const View got = evaluation.gradient.view();
  for (Index b = 0; b < batch.sequences; ++b) {
    for (Index t = 0; t < S; ++t) {
      const std::array<Index, 2> place{b, t};
      const bool last = t + 1 == S;
      comparison.element("grad_logprobs", place, got.get<double>(b * S + t), last ? 0.0 : want.get<double>(b, t),
                         last ? Tolerance{} : tolerance);
    }
  }
}

// A case that expects nothing would pass whatever is computed.
void expect_values(const CaseFile& file, std::initializer_list<const char*> tensors) {
  std::string known;
  for (const char* tensor : tensors) {
    if (file.has(tensor)) return;
    known += std::string(tensor) + ", ";
  }
  if (file.has_entry("metrics")) return;
  throw DataError({"case", "an expected value: " + known + "or metrics", "none", file.path()});
}

void check_contents(const CaseFile& file, const RunOptions& run, Pool& pool, Witness& witness, Comparison& comparison) {
  const std::string kind = file.text("kind");
  if (kind == "vocab_ops") {
    if (!file.has_entry("expect_error")) {
      expect_values(file, {"lse", "logprob", "entropy", "topk_logprobs", "grad_logits_logprob", "grad_logits_entropy",
                           "grad_logits_topk"});
    }
    refuse_rounding(file.floats("logits", {-1, -1}), run.dtype);
    return check_vocab_ops(file, run, pool, witness, comparison);
  }
  const LossChoice choice = configured({loss_kind(kind), {}}, file.json("config"), file.source("config"));
  const EvaluateOptions options{
      .run = run, .pool = &pool, .audit = Audit::unwritten_rows, .keep_gradient = true, .witness = &witness};
  const bool compared = !file.has_entry("expect_error");
  if (compared) expect_values(file, {"loss", "grad_logits", "grad_logprobs"});
  if (kind.starts_with("packed_")) {
    const RecordedBatch batch = RecordedBatch::packed(file);
    refuse_rounding(batch.logits, run.dtype);
    const Evaluation evaluation = evaluate_packed(batch, choice, options);
    if (compared) compare_packed(file, batch, evaluation, comparison);
  } else {
    const RecordedBatch batch = RecordedBatch::padded(file);
    const Evaluation evaluation = evaluate_padded(batch, choice, options);
    if (compared) compare_padded(file, batch, evaluation, comparison);
  }
}

// The names of all that was wrong, and the worst element of it.
Verdict judged(const Comparison& comparison) {
  Verdict verdict;
  if (!comparison.worst()) return verdict;
  verdict.outcome = Outcome::failed;
  verdict.worst = comparison.worst();
  verdict.reason = comparison.worst()->text();
  std::vector<std::string> others;
  for (const std::string& name : comparison.wrong()) {
    const bool named = name == comparison.worst()->tensor || std::find(others.begin(), others.end(), name) != others.end();
    if (!named) others.push_back(name);
  }
  if (!others.empty()) verdict.reason += "; also wrong: " + listed(others);
  return verdict;
}

// A case that was to be refused, and was, with `message` as the first cause.
Verdict judged_refusal(const std::string& wanted, const std::string& message, const Witness& witness) {
  const auto failed = [](std::string reason) { return Verdict{Outcome::failed, {}, std::move(reason), {}}; };
  const auto says = [&](const std::string& text) { return lower(text).find(lower(wanted)) != std::string::npos; };
  if (!says(message)) return failed("expected a refusal with \"" + wanted + "\", found: " + message);
  for (std::size_t rank = 0; rank < witness.ranks().size(); ++rank) {
    const Witness::Rank& found = witness.ranks()[rank];
    const std::string who = "rank " + std::to_string(rank);
    if (found.finished) return failed(who + " did not refuse it");
    if (found.wrote) return failed(who + " wrote to its slice before it refused: " + found.message);
    if (!found.message.empty() && !says(found.message)) {
      return failed(who + " refused it for another reason: " + found.message);
    }
  }
  return {};
}

Verdict verdict_of(const CaseFile& file, const RunOptions& run, Pool& pool) {
  Witness witness(run.tensor_parallel);
  Comparison comparison;
  try {
    check_contents(file, run, pool, witness, comparison);
  } catch (const Unsupported& unsupported) {
    return {Outcome::skipped, {}, unsupported.what(), {}};
  } catch (const std::exception& error) {
    if (!file.has_entry("expect_error")) return {Outcome::failed, {}, error.what(), {}};
    return judged_refusal(file.text("expect_error"), error.what(), witness);
  }
  if (!file.has_entry("expect_error")) return judged(comparison);
  return {Outcome::failed, {}, "expected a refusal with \"" + file.text("expect_error") + "\", but it went through", {}};
}

}  // namespace

Verdict check_case(const std::string& path, const RunOptions& run, Pool& pool) {
  std::optional<CaseFile> file;
  try {
    file.emplace(path);
  } catch (const std::exception& error) {
    return {Outcome::failed, {}, error.what(), {}};
  }
  Verdict verdict = verdict_of(*file, run, pool);
  verdict.kind = file->text("kind");
  return verdict;
}

}  // namespace losstape::cli
