// SPDX-License-Identifier: Apache-2.0
// Runs the C++ blocks of every page of the documentation.
#include <exception>
#include <iostream>
#include <utility>
#include <vector>

#include "tests/docs/snippets.h"

namespace {

using Pages = std::vector<std::pair<const char*, void (*)()>>;

Pages& pages() {
  static Pages all;
  return all;
}

}  // namespace

snippets::Page::Page(const char* title, void (*run)()) { pages().emplace_back(title, run); }

int main() {
  int failed = 0;
  for (const auto& [title, run] : pages()) {
    std::cout << "== " << title << std::endl;
    try {
      run();
    } catch (const std::exception& error) {
      std::cout << title << ": " << error.what() << std::endl;
      ++failed;
    }
  }
  return failed == 0 ? 0 : 1;
}
