// SPDX-License-Identifier: Apache-2.0
// `losstape check`: golden cases, one verdict each, and the counts.
#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "cli/arguments.h"
#include "cli/golden.h"
#include "cli/json.h"
#include "cli/program.h"
#include "cli/run_options.h"
#include "engine/error.h"

namespace losstape::cli {
namespace {

constexpr const char* kAbout =
    R"(Runs golden cases and compares losses, metrics and gradients with the values
that they hold. A folder stands for its *.safetensors. Failures name the worst
element; kinds and configurations of later versions are skipped and named. The
last line is `N passed, N failed`, and `, N skipped` where there are any.)";

std::vector<std::string> files_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  if (error) throw DataError({"check", "a folder that can be read", path + ": " + error.message()});
  if (files.empty()) throw DataError({"check", "*.safetensors in the folder", "none in " + path});
  std::sort(files.begin(), files.end());
  return files;
}

Json as_json(const std::string& path, const Verdict& verdict) {
  Json failure{{"file", path}, {"kind", verdict.kind}, {"message", verdict.reason}};
  if (!verdict.worst) return failure;
  const Mismatch& worst = *verdict.worst;
  failure["tensor"] = worst.tensor;
  failure["index"] = worst.index;
  failure["got"] = to_json(worst.got);
  failure["want"] = to_json(worst.want);
  failure["error"] = to_json(worst.error);
  failure["tolerance"] = to_json(worst.tolerance);
  return failure;
}

}  // namespace

int check_command(std::span<const std::string> arguments, const Streams& streams) {
  bool help = false;
  bool json = false;
  RunArguments run;
  Arguments parser("losstape check", "losstape check PATH… [OPTION…]", kAbout);
  run.declare(parser);
  parser.flag("--json", json, "print one JSON object, and nothing else, on standard output");
  parser.flag("--help", help, "print this");
  const std::vector<std::string> paths = parser.parse(arguments);
  if (help) {
    streams.out << parser.help();
    return kGood;
  }
  if (paths.empty()) parser.refuse("check needs a file or a folder");

  std::vector<std::string> files;
  for (const std::string& path : paths) {
    const std::vector<std::string> more = files_of(path);
    files.insert(files.end(), more.begin(), more.end());
  }
  const RunOptions options = run.options();
  Pool pool(options.threads);
  // With --json standard output has the object alone.
  std::ostream& lines = json ? streams.err : streams.out;
  int passed = 0;
  int failed = 0;
  int skipped = 0;
  Json failures = Json::array();
  for (const std::string& file : files) {
    const Verdict verdict = check_case(file, options, pool);
    const std::string name = std::filesystem::path(file).filename().string();
    switch (verdict.outcome) {
      case Outcome::passed: ++passed; break;
      case Outcome::failed:
        ++failed;
        failures.push_back(as_json(file, verdict));
        lines << "FAIL " << name << ": " << verdict.reason << "\n";
        break;
      case Outcome::skipped:
        ++skipped;
        lines << "skip " << name << ": " << verdict.reason << "\n";
        break;
    }
    lines.flush();
  }
  if (json) {
    const Json report{{"passed", passed}, {"failed", failed}, {"skipped", skipped}, {"failures", failures}};
    streams.out << report.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    streams.out << passed << " passed, " << failed << " failed";
    if (skipped > 0) streams.out << ", " << skipped << " skipped";
    streams.out << "\n";
  }
  return failed > 0 ? kFailed : kGood;
}

}  // namespace losstape::cli
