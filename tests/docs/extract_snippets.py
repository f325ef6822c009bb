#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the ```cpp blocks of a Markdown page into one C++ file, which is compiled and run as a test.

    extract_snippets.py PAGE NAME_OF_PAGE OUTPUT.cpp

- A block with `int main` is a whole program: it stands alone, and its main() is run.
- Any other block continues the function that the blocks before it began, so a page can declare a name in one block and use it in
  the next. A comment `<!-- compiled-with: NAME.h -->` (a reader does not see it) begins a new function; tests/docs/NAME.h is
  included, and the names that it declares in `namespace NAME` are known to the blocks that follow.
- In such a block, a paragraph (up to a blank line outside of braces) that is a definition at file scope (namespace, struct, class,
  enum, template, concept, a function) is moved in front of the function; so are #include lines. Namespace losstape is open.
- There is no way to leave a ```cpp block out: what should not be compiled is ```text.
"""
import re
import sys

MARKER = re.compile(r"<!--\s*compiled-with:\s*(\w+)\.h\s*-->")
FILE_SCOPE = re.compile(r"(inline\s+)?(namespace|struct|class|enum|template|concept|static_assert)\b")
FUNCTION = re.compile(r"(?!(?:if|for|while|switch|else|do|try|return)\b)[^=.(]*[\w>&*]\s+[&*]?\w+\([^;{]*\)"
                      r"\s*(?:const\s*)?(?:noexcept\s*)?(?:->\s*[\w:<>&* ]+)?\{")


class Section:
    """One function of the generated file: `lines` are its body, `scope` what stands before it."""

    def __init__(self, preamble=None):
        self.preamble = preamble
        self.scope = []
        self.lines = []


def code_of(line):
    """The line without strings and comments, for counting braces."""
    line = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', "", line)
    return line.split("//")[0]


def depth_change(line):
    code = code_of(line)
    return code.count("{") - code.count("}")


def blocks_of(text):
    """Yields (marker or None, number of the first line, lines) for each ```cpp block."""
    marker = None
    first = 0
    block = None
    for number, line in enumerate(text.split("\n"), start=1):
        if block is None:
            found = MARKER.search(line)
            marker = found.group(1) if found else marker
            if line.strip() == "```cpp":
                block, first, indent = [], number + 1, len(line) - len(line.lstrip())
        elif line.strip() == "```":
            yield marker, first, block
            block, marker = None, None
        else:
            block.append(line[indent:])
    if block is not None:
        sys.exit(f"line {first - 1}: a ```cpp block without an end")


def paragraphs_of(first, lines):
    """Yields (number of the first line, lines) of each paragraph."""
    depth = 0
    part = []
    for number, line in enumerate(lines, start=first):
        if not line.strip() and depth == 0:
            if part:
                yield number - len(part), part
            part = []
        else:
            part.append(line)
            depth += depth_change(line)
    if part:
        yield first + len(lines) - len(part), part


def is_file_scope(paragraph):
    code = [line for line in paragraph if code_of(line).strip()]
    return bool(code) and bool(FILE_SCOPE.match(code[0]) or FUNCTION.match(" ".join(code)))


def main_to_function(lines):
    """int main becomes int program, which must say what it returns."""
    text = "\n".join(lines)
    start = re.search(r"\bint main\s*\([^)]*\)", text)
    text = text[:start.start()] + "int program()" + text[start.end():]
    depth = 0
    result = []
    inside = False
    for line in text.split("\n"):
        inside = inside or "int program()" in line
        depth += depth_change(line)
        if inside and depth == 0 and "}" in code_of(line):
            at = line.rindex("}")
            line = line[:at] + "return 0; " + line[at:]
            inside = False
        result.append(line)
    return result


def generate(page, text):
    includes = []
    sections = [Section()]
    programs = []
    for marker, first, lines in blocks_of(text):
        includes += [line for line in lines if line.startswith("#include")]
        lines = ["" if line.startswith("#include") else line for line in lines]
        if re.search(r"\bint main\s*\(", "\n".join(lines)):
            programs.append([f'#line {first} "{page}"'] + main_to_function(lines))
            continue
        if marker:
            includes.append(f'#include "tests/docs/{marker}.h"')
            sections.append(Section(marker))
        for number, paragraph in paragraphs_of(first, lines):
            target = sections[-1].scope if is_file_scope(paragraph) else sections[-1].lines
            target += [f'#line {number} "{page}"'] + paragraph

    out = [f"// Generated from {page} by tests/docs/extract_snippets.py."]
    out += list(dict.fromkeys(includes)) + ['#include "tests/docs/snippets.h"', "namespace losstape {}", "namespace {"]
    calls = []
    for index, section in enumerate(s for s in sections if s.scope or s.lines):
        name = f"section_{index}"
        out += [f"namespace {name} {{", "using namespace losstape;"]
        out += [f"using namespace {section.preamble};"] if section.preamble else []
        out += section.scope + ["void run() {"] + section.lines + ["}", "}"]
        calls.append(f"{name}::run();")
    for index, program in enumerate(programs):
        out += [f"namespace program_{index} {{"] + program + ["}"]
        calls.append(f'if (program_{index}::program() != 0) throw std::runtime_error("a program of the page failed");')
    out += [f'const snippets::Page page("{page}", [] {{'] + calls + ["});", "}"]
    return "\n".join(out) + "\n"


def main():
    source, page, output = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        text = file.read()
    with open(output, "w", encoding="utf-8") as file:
        file.write(generate(page, text))


if __name__ == "__main__":
    main()
