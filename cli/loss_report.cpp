// SPDX-License-Identifier: Apache-2.0
// The report's lines and keys.
#include "cli/loss_report.h"

#include "cli/json.h"
#include "cli/table.h"

namespace losstape::cli {
namespace {

// Bytes with their size in words beside them.
void bytes(Table& table, const char* label, std::size_t count, const std::string& note) {
  table.number(label, grouped(static_cast<Index>(count)), binary_size(count) + (note.empty() ? "" : ", " + note));
}

std::string batch_text(const RecordedBatch& batch) {
  return counted(batch.sequences, "sequence") + ", " + counted(batch.logits.rows, "row") + ", vocabulary " +
         grouped(batch.logits.cols) + ", logits " + name(batch.logits.dtype);
}

std::string layout_text(const LossReport& report) {
  const RunOptions& run = report.run;
  std::string text = run.tensor_parallel == 1
                         ? "one rank with the whole vocabulary"
                         : "vocabulary over " + counted(run.tensor_parallel, "rank") + " (threads of this process)";
  text += ", " + counted(report.threads, "thread");
  if (run.chunk_rows > 0) text += ", chunks of " + counted(run.chunk_rows, "row");
  if (run.dtype) text += ", logits rounded to " + std::string(name(*run.dtype));
  return text + (report.evaluation.real == DType::f64 ? ", computed in fp64" : ", slices in fp32");
}

}  // namespace

std::string table_text(const LossReport& report, const RecordedBatch& batch) {
  const Evaluation& e = report.evaluation;
  Table table;
  table.words("file", tail(report.file, 54));
  table.words("batch", batch_text(batch));
  table.words("loss", std::string(name(report.choice.kind)) + ": " + describe(report.choice));
  table.words("layout", layout_text(report));
  table.section("value");
  table.number("loss", digits(e.loss));
  for (const auto& [name, value] : e.metrics) {
    if (name != "loss") table.number(name, digits(value));
  }
  table.section("gradient");
  table.number("norm", digits(e.gradient_norm), "of grad_logits, over all ranks");
  if (report.gradient_check) {
    const GradientCheck& check = *report.gradient_check;
    const std::string skipped = check.skipped_kinks == 0 ? "" : ", " + grouped(check.skipped_kinks) + " skipped at kinks";
    table.number("finite differences", short_number(check.worst_relative_error),
                 "worst error of " + grouped(check.checked) + " checks, " + short_number(GradientCheck::kBound) +
                     " allowed" + skipped);
  }
  table.section("bytes held by a rank");
  bytes(table, "logits", e.memory.logits, "");
  bytes(table, "slices", e.memory.slices, "the gradient, yours to give");
  bytes(table, "saved", e.memory.saved, "from forward to backward");
  bytes(table, "workspace", e.memory.workspace, "");
  bytes(table, "columns, records", e.memory.columns, "");
  table.section("collectives of a step");
  table.number("forward", grouped(e.collectives.forward));
  table.number("backward", grouped(e.collectives.backward));
  table.number("bytes of a rank", grouped(static_cast<Index>(e.collectives.bytes)));
  table.section("time");
  table.number("forward", duration(e.seconds.forward));
  table.number("backward", duration(e.seconds.backward));
  return table.text();
}

std::string json_text(const LossReport& report) {
  const Evaluation& e = report.evaluation;
  Json metrics = Json::object();
  for (const auto& [name, value] : e.metrics) metrics[name] = to_json(value);
  Json object{{"loss", to_json(e.loss)}, {"metrics", metrics}, {"gradient_norm", to_json(e.gradient_norm)}};
  object["memory"] = {{"logits", e.memory.logits},
                      {"slices", e.memory.slices},
                      {"saved", e.memory.saved},
                      {"workspace", e.memory.workspace}};
  object["collectives"] = {
      {"forward", e.collectives.forward}, {"backward", e.collectives.backward}, {"bytes", e.collectives.bytes}};
  object["seconds"] = {{"forward", to_json(e.seconds.forward)}, {"backward", to_json(e.seconds.backward)}};
  if (report.gradient_check) {
    const GradientCheck& check = *report.gradient_check;
    object["gradient_check"] = {{"worst_relative_error", to_json(check.worst_relative_error)},
                                {"checked", check.checked},
                                {"skipped_kinks", check.skipped_kinks}};
  }
  return object.dump(2) + "\n";
}

}  // namespace losstape::cli
