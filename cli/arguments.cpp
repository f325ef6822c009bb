// SPDX-License-Identifier: Apache-2.0
// How options are told from other words, and what is refused.
#include "cli/arguments.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <utility>

#include "cli/json.h"
#include "cli/nearest.h"

namespace losstape::cli {

Arguments::Arguments(std::string command, std::string usage, std::string about)
    : command_(std::move(command)), usage_(std::move(usage)), about_(std::move(about)) {}

void Arguments::flag(const std::string& name, bool& into, const std::string& help) {
  options_.push_back({name, "", help, [&into](const std::string&) { into = true; }});
}

void Arguments::text(const std::string& name, const std::string& value, std::string& into, const std::string& help) {
  options_.push_back({name, value, help, [this, name, &into](const std::string& given) {
                        if (given.empty()) refuse(name + " needs a value that is not empty");
                        into = given;
                      }});
}

void Arguments::integer(const std::string& name, Index& into, Index least, Index most, const std::string& help) {
  options_.push_back({name, "N", help, [this, name, least, most, &into](const std::string& given) {
                        Index number = 0;
                        const char* end = given.data() + given.size();
                        const auto read = std::from_chars(given.data(), end, number);
                        if (read.ec != std::errc() || read.ptr != end || number < least || number > most) {
                          refuse(name + " takes a whole number between " + std::to_string(least) + " and " +
                                 std::to_string(most) + ", not " + in_quotes(given));
                        }
                        into = number;
                      }});
}

void Arguments::choice(const std::string& name, std::string& into, const std::vector<std::string>& choices,
                       const std::vector<std::string>& later, const std::string& help) {
  options_.push_back({name, "", help, [this, name, choices, later, &into](const std::string& given) {
                        if (std::find(later.begin(), later.end(), given) != later.end()) {
                          refuse(name + " " + given + " is not in this version yet; it has " + listed(choices));
                        }
                        if (std::find(choices.begin(), choices.end(), given) == choices.end()) {
                          std::vector<std::string> known = choices;
                          known.insert(known.end(), later.begin(), later.end());
                          refuse(name + " takes one of " + listed(choices) + ", not " + in_quotes(given) +
                                 did_you_mean(given, known));
                        }
                        into = given;
                      }});
  std::string& value = options_.back().value;
  for (const std::string& word : choices) value += (value.empty() ? "" : "|") + word;
}

void Arguments::later(const std::vector<std::string>& names) { later_.insert(later_.end(), names.begin(), names.end()); }

const Arguments::Option& Arguments::find(std::string_view name) const {
  for (const Option& option : options_) {
    if (option.name == name) return option;
  }
  if (std::find(later_.begin(), later_.end(), name) != later_.end()) {
    refuse(std::string(name) + " is not in this version yet");
  }
  std::vector<std::string> known{"--help"};
  for (const Option& option : options_) known.push_back(option.name);
  refuse("there is no option " + in_quotes(name) + did_you_mean(name, known));
}

std::vector<std::string> Arguments::parse(std::span<const std::string> arguments) const {
  std::vector<std::string> words;
  bool options = true;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!options || word.size() < 2 || word[0] != '-') {
      words.push_back(word);
      continue;
    }
    if (word == "--") {
      options = false;
      continue;
    }
    const std::size_t equals = word.find('=');
    const bool joined = equals != std::string::npos;
    const Option& option = find(std::string_view(word).substr(0, equals));
    if (option.value.empty()) {
      if (joined) refuse(option.name + " takes no value");
      option.set("");
      continue;
    }
    if (!joined && i + 1 == arguments.size()) refuse(option.name + " needs a value, " + option.value);
    option.set(joined ? word.substr(equals + 1) : arguments[++i]);
  }
  return words;
}

std::string Arguments::help() const {
  constexpr std::size_t kIndent = 28;
  constexpr std::size_t kWidth = 80;
  std::string text = "usage: " + usage_ + "\n\n" + about_ + "\n\n";
  for (const Option& option : options_) {
    std::string line = "  " + option.name + (option.value.empty() ? "" : " " + option.value);
    if (line.size() + 2 > kIndent) {
      text += line + "\n";
      line.clear();
    }
    line.resize(kIndent - 1, ' ');
    // The help, broken between words.
    for (std::size_t at = 0; at < option.help.size();) {
      const std::size_t end = std::min(option.help.find(' ', at), option.help.size());
      if (line.size() + 1 + (end - at) > kWidth) {
        text += line + "\n";
        line.assign(kIndent - 1, ' ');
      }
      line += " " + option.help.substr(at, end - at);
      at = end + 1;
    }
    text += line + "\n";
  }
  return text;
}

void Arguments::refuse(const std::string& message) const {
  throw WrongUsage(message + "\n`" + command_ + " --help` lists what it takes");
}

}  // namespace losstape::cli
