// SPDX-License-Identifier: Apache-2.0
// The arguments of a command: options are declared with their types and help, then parsed.
#pragma once

#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/dtype.h"

namespace losstape::cli {

// The caller asked for something that the program does not do: exit status 2.
class WrongUsage : public std::runtime_error {
  using runtime_error::runtime_error;
};

// Options are written --name VALUE or --name=VALUE, anywhere among the other words; -- ends them. The last of a repeated
// option counts. What an option refers to keeps its value where the option is not given.
class Arguments {
 public:
  // `usage` and `about` open the help; `command` is named in messages.
  Arguments(std::string command, std::string usage, std::string about);

  void flag(const std::string& name, bool& into, const std::string& help);
  void text(const std::string& name, const std::string& value, std::string& into, const std::string& help);
  void integer(const std::string& name, Index& into, Index least, Index most, const std::string& help);
  // One of `choices`; `later` ones are known, and not in this version.
  void choice(const std::string& name, std::string& into, const std::vector<std::string>& choices,
              const std::vector<std::string>& later, const std::string& help);
  // Options that are known, and not in this version.
  void later(const std::vector<std::string>& names);

  // Takes the options out and returns the other words. Errors: WrongUsage.
  [[nodiscard]] std::vector<std::string> parse(std::span<const std::string> arguments) const;
  [[nodiscard]] std::string help() const;

  [[noreturn]] void refuse(const std::string& message) const;

 private:
  struct Option {
    std::string name;
    std::string value;  // what stands for its value in the help; empty for a flag
    std::string help;
    std::function<void(const std::string&)> set;
  };

  [[nodiscard]] const Option& find(std::string_view name) const;

  std::string command_;
  std::string usage_;
  std::string about_;
  std::vector<Option> options_;
  std::vector<std::string> later_;
};

}  // namespace losstape::cli
