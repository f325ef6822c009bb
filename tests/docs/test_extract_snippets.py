#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks which block of a page lands where in the generated C++."""
import extract_snippets

PAGE = """
<!-- compiled-with: batch.h -->
```cpp
#include <cmath>
struct Node {
  int a;

  int b;
};

auto x = make(Node{});
for (int i = 0; i < 3; ++i) {
  use(x, "}");
}
```
Words.
```cpp
auto twice(auto y) -> decltype(y) {
  return 2 * y;
}

const View z(data, {1, 2});
run(ranks, [&](int rank) {
  twice(rank);
});
```
```text
never compiled
```
```cpp
#include <cstdio>
int main(int argc, char** argv) {
  if (true) { std::puts("}"); }
}
```
"""


def main():
    text = extract_snippets.generate("docs/page.md", PAGE)
    code = [line for line in text.split("\n") if not line.startswith("#line")]
    section = code[code.index("namespace section_0 {"):code.index("namespace program_0 {")]
    body = section.index("void run() {")
    assert code.index("#include <cmath>") < code.index("namespace {")
    assert code.index('#include "tests/docs/batch.h"') < code.index("namespace {")
    assert "using namespace batch;" in section
    for line in ("struct Node {", "  int b;", "auto twice(auto y) -> decltype(y) {"):
        assert section.index(line) < body, line
    for line in ("auto x = make(Node{});", "for (int i = 0; i < 3; ++i) {", "const View z(data, {1, 2});",
                 "run(ranks, [&](int rank) {"):
        assert section.index(line) > body, line
    program = code[code.index("namespace program_0 {"):]
    assert program[2:5] == ["int program() {", '  if (true) { std::puts("}"); }', "return 0; }"], program
    assert "never compiled" not in text
    assert '#line 11 "docs/page.md"\nauto x' in text, text
    assert "namespace section_" not in extract_snippets.generate("docs/empty.md", "No blocks.\n")


if __name__ == "__main__":
    main()
