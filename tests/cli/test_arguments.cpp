// SPDX-License-Identifier: Apache-2.0
// Options that are taken, and the words of a refusal.
#include "cli/arguments.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cli/nearest.h"
#include "cli/run_options.h"
#include "tests/cli/program_run.h"

namespace losstape::cli {
namespace {

using testing::losstape;
using testing::Printed;

// Values of every type of option.
struct Options {
  bool flag = false;
  std::string text = "before";
  Index number = 7;
  std::string word = "one";
  std::vector<std::string> words;
};

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  Arguments parser("try", "try FILE", "A try.");
  parser.flag("--flag", options.flag, "a flag");
  parser.text("--text", "TEXT", options.text, "a text");
  parser.integer("--number", options.number, -2, 12, "a number");
  parser.choice("--word", options.word, {"one", "two"}, {"three"}, "a word");
  parser.later({"--tomorrow"});
  options.words = parser.parse(arguments);
  return options;
}

std::string refusal(const std::vector<std::string>& arguments) {
  try {
    static_cast<void>(parse(arguments));
  } catch (const WrongUsage& wrong) {
    return wrong.what();
  }
  return "no refusal";
}

}  // namespace

TEST_SUITE("cli/arguments") {
  TEST_CASE("options may stand anywhere, joined to their values or before them; the last one counts") {
    const Options o = parse({"a", "--number", "3", "--flag", "b", "--text=x=y", "--word", "two", "--number=-2"});
    CHECK(o.flag);
    CHECK(o.text == "x=y");
    CHECK(o.number == -2);
    CHECK(o.word == "two");
    CHECK(o.words == std::vector<std::string>{"a", "b"});
  }

  TEST_CASE("what is not given keeps its value") {
    const Options o = parse({});
    CHECK_FALSE(o.flag);
    CHECK(o.text == "before");
    CHECK(o.number == 7);
    CHECK(o.word == "one");
    CHECK(o.words.empty());
  }

  TEST_CASE("after -- every word is a word, and so is a single -") {
    CHECK(parse({"-", "--", "--flag", "--"}).words == std::vector<std::string>{"-", "--flag", "--"});
  }

  TEST_CASE("an unknown option is refused with the nearest known one") {
    CHECK(refusal({"--numbr", "1"}).find("did you mean --number?") != std::string::npos);
    CHECK(refusal({"--num"}).find("did you mean --number?") != std::string::npos);
    CHECK(refusal({"--zzzzzzzzz"}).find("did you mean") == std::string::npos);
    CHECK(refusal({"-x"}).find("there is no option \"-x\"") != std::string::npos);
    CHECK(refusal({"--flag", "--nubmer=1"}).find("`try --help`") != std::string::npos);
  }

  TEST_CASE("values that do not fit are refused with what would") {
    for (const char* bad : {"x", "", "1.5", "13", "-3", "99999999999999999999", "1 ", " 1", "0x1"}) {
      CAPTURE(bad);
      CHECK(refusal({"--number", bad}).find("a whole number between -2 and 12") != std::string::npos);
    }
    CHECK(refusal({"--number"}).find("needs a value") != std::string::npos);
    CHECK(refusal({"--text="}).find("not empty") != std::string::npos);
    CHECK(refusal({"--flag=1"}).find("takes no value") != std::string::npos);
    CHECK(refusal({"--word", "tow"}).find("did you mean two?") != std::string::npos);
  }

  TEST_CASE("what a later version has is named as such") {
    CHECK(refusal({"--tomorrow", "2"}).find("--tomorrow is not in this version yet") != std::string::npos);
    CHECK(refusal({"--tomorrow=2"}).find("--tomorrow is not in this version yet") != std::string::npos);
    CHECK(refusal({"--word", "three"}).find("--word three is not in this version yet") != std::string::npos);
  }

  TEST_CASE("the help names every option and fits 80 columns") {
    for (const char* command : {"loss", "check"}) {
      const Printed help = losstape({command, "--help"});
      CHECK(help.status == 0);
      CHECK(help.err.empty());
      for (const char* option : {"--tensor-parallel", "--chunk-rows", "--threads", "--dtype", "--json"}) {
        CHECK(help.out.find(option) != std::string::npos);
      }
      std::size_t begin = 0;
      while (begin < help.out.size()) {
        const std::size_t end = help.out.find('\n', begin);
        CHECK(end - begin <= 82);  // in bytes: a character or two are longer
        begin = end + 1;
      }
    }
  }

  TEST_CASE("the shared options arrive as numbers and dtypes") {
    RunArguments run;
    Arguments parser("try", "try", "A try.");
    run.declare(parser);
    const std::vector<std::string> given{
        "--tensor-parallel", "3",       "--chunk-rows=5", "--threads", "2",      "--dtype", "bf16",
        "--communicator",    "threads", "--device",       "cpu",       "--from", "logits"};
    CHECK(parser.parse(given).empty());
    const RunOptions options = run.options();
    CHECK(options.tensor_parallel == 3);
    CHECK(options.chunk_rows == 5);
    CHECK(options.threads == 2);
    CHECK(options.dtype == DType::bf16);
    CHECK_FALSE(RunArguments().options().dtype.has_value());
  }

  TEST_CASE("the program has help, a version, and exit status 2 for what it does not do") {
    CHECK(losstape({"--help"}).status == 0);
    CHECK(losstape({"--version"}).out.starts_with("losstape "));
    for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
             {},
             {"lose"},
             {"plan"},
             {"bench"},
             {"loss"},
             {"check"},
             {"loss", "a", "b"},
             {"loss", "a", "--context-parallel", "2"},
             {"loss", "a", "--in-place"},
             {"loss", "a", "--communicator", "mpi"},
             {"loss", "a", "--device", "cuda"},
             {"check", "a", "--from", "hidden"},
             {"check", "a", "--tensor-parallel", "0"},
             {"check", "a", "--tensor-parallel", "1000"},
             {"check", "a", "--dtype", "f8"},
         }) {
      const Printed printed = losstape(wrong);
      CAPTURE(printed.err);
      CHECK(printed.status == 2);
      CHECK(printed.out.empty());
      CHECK_FALSE(printed.err.empty());
    }
    CHECK(losstape({"lose"}).err.find("did you mean loss?") != std::string::npos);
    CHECK(losstape({"plan"}).err.find("not in this version yet") != std::string::npos);
  }
}

}  // namespace losstape::cli
