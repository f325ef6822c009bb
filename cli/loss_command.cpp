// SPDX-License-Identifier: Apache-2.0
// `losstape loss`: one recorded batch, evaluated and reported.
#include <array>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <vector>

#include "cli/arguments.h"
#include "cli/evaluate.h"
#include "cli/gradient_check.h"
#include "cli/json.h"
#include "cli/loss_config.h"
#include "cli/loss_report.h"
#include "cli/program.h"
#include "cli/recorded_batch.h"
#include "cli/safetensors.h"
#include "engine/error.h"

namespace losstape::cli {
namespace {

constexpr const char* kAbout =
    R"(Evaluates a loss on a recorded batch: a safetensors file with logits [tokens,
vocabulary], input_ids, cu_seqlens and per-token columns. Where the file has a
kind and a config, they are used unless --loss or --config say otherwise.)";

struct LossArguments {
  std::string file;
  std::string loss;
  std::string config;
  std::string gradient;
  bool check_gradient = false;
  bool json = false;
  RunOptions run{};
};

constexpr std::uintmax_t kMostConfigBytes = 256 << 10;  // as much as parse_json takes

// JSON, or @ and the name of a file with JSON.
Json config_json(const std::string& given) {
  if (given[0] != '@') return parse_json(given, "--config");
  const std::string path = given.substr(1);
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) throw WrongUsage("--config: " + in_quotes(path) + " is no file");
  if (std::filesystem::file_size(path, unknown) > kMostConfigBytes) {
    throw WrongUsage("--config: " + in_quotes(path) + " is longer than a configuration");
  }
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw WrongUsage("--config: " + in_quotes(path) + " cannot be read");
  return parse_json(text, path);
}

// --loss and --config replace the file's config; a --loss of the file's own kind, and no preset, keeps it. What is wrong
// with the arguments is wrong usage, what is wrong with the file is not.
LossChoice choose(const LossArguments& arguments, const CaseFile& file) try {
  LossChoice choice;
  bool of_file = arguments.config.empty();
  if (arguments.loss.empty()) {
    if (file.has_entry("kind")) choice.kind = loss_kind(file.text("kind"));
  } else {
    try {
      choice = named_loss(arguments.loss);
    } catch (const std::exception& error) {
      throw WrongUsage(error.what());
    }
    of_file = of_file && arguments.loss == name(choice.kind) && file.has_entry("kind") &&
              loss_kind(file.text("kind")) == choice.kind;
  }
  if (of_file) return configured(choice, file.json("config"), file.source("config"));
  if (arguments.config.empty()) return choice;
  try {
    return configured(choice, config_json(arguments.config), "given by --config");
  } catch (const std::exception& error) {
    throw WrongUsage(error.what());
  }
} catch (const Unsupported& unsupported) {
  throw Unsupported(file.path() + ": " + unsupported.what() + " (--loss and --config may ask for another loss)");
}

// A line that is overwritten as the check goes on.
std::function<void(double)> progress_line(const Streams& streams) {
  if (!streams.progress) return {};
  return [&streams, last = -1](double share) mutable {
    const int percent = static_cast<int>(share * 100);
    if (percent == last) return;
    last = percent;
    streams.err << "\rchecking the gradient: " << percent << " %" << std::flush;
    if (percent >= 100) streams.err << "\r" << std::string(40, ' ') << "\r" << std::flush;
  };
}

std::optional<LossArguments> read(std::span<const std::string> words, const Streams& streams) {
  LossArguments arguments;
  RunArguments run;
  bool help = false;
  Arguments parser("losstape loss", "losstape loss FILE [OPTION…]", kAbout);
  parser.text("--loss", "NAME", arguments.loss,
              "clipped_policy_gradient, nll, or a preset: grpo, dapo (the file's kind, or clipped_policy_gradient)");
  parser.text("--config", "JSON|@FILE", arguments.config, "the loss's options; replaces the file's config");
  run.declare(parser);
  parser.text("--gradient", "OUT", arguments.gradient, "write grad_logits [tokens, vocabulary] to a safetensors file");
  parser.flag("--check-gradient", arguments.check_gradient, "compare the gradient with finite differences in fp64");
  parser.flag("--json", arguments.json, "print one JSON object, and nothing else, on standard output");
  parser.flag("--help", help, "print this");
  const std::vector<std::string> files = parser.parse(words);
  if (help) {
    streams.out << parser.help();
    return std::nullopt;
  }
  if (files.size() != 1)
    parser.refuse(files.empty() ? "loss needs a file" : "loss takes one file, not " + in_quotes(files[1]) + " too");
  arguments.file = files[0];
  arguments.run = run.options();
  std::error_code other;
  if (!arguments.gradient.empty() && std::filesystem::equivalent(arguments.file, arguments.gradient, other)) {
    parser.refuse("--gradient would replace the batch, " + in_quotes(arguments.file) + ": name another file");
  }
  return arguments;
}

}  // namespace

int loss_command(std::span<const std::string> words, const Streams& streams) {
  const std::optional<LossArguments> arguments = read(words, streams);
  if (!arguments) return kGood;
  const CaseFile file(arguments->file);
  LossReport report;
  report.file = arguments->file;
  report.choice = choose(*arguments, file);
  report.run = arguments->run;
  const RecordedBatch batch = RecordedBatch::packed(file);
  Pool pool(report.run.threads);
  report.threads = pool.threads();
  report.evaluation =
      evaluate_packed(batch, report.choice,
                      {.run = report.run, .pool = &pool, .timed = true, .keep_gradient = !arguments->gradient.empty()});
  if (arguments->check_gradient) {
    report.gradient_check = check_gradient(batch, report.choice, report.run, progress_line(streams));
  }
  const bool good = !report.gradient_check || report.gradient_check->failure.empty();
  if (good && !arguments->gradient.empty()) {  // a gradient that failed its check replaces no file
    const std::array tensors{
        NamedTensor{"grad_logits", report.evaluation.gradient.view(), {batch.logits.rows, batch.logits.cols}}};
    write_safetensors(arguments->gradient, tensors, {{"loss", name(report.choice.kind)}});
  }
  streams.out << (arguments->json ? json_text(report) : table_text(report, batch));
  if (good) return kGood;
  streams.err << "losstape: the gradient check failed: " << report.gradient_check->failure << "\n";
  return kFailed;
}

}  // namespace losstape::cli
