#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of the house that a compiler does not know. Prints each fault with its file.

    house_rules.py RULE [ROOT]     where RULE is one of: licence, text, nodes, listed
"""
import os
import re
import sys

from source_files import files_of

SOURCES = (".h", ".cpp", ".cu", ".cuh", ".py", ".build", ".sh")
SCRIPTS = ("dev", ".ci/run", "meson_options.txt", ".clang-tidy", ".gitignore")
# Put together here so that this file does not break its own rule.
MACHINE_PATH = re.compile(r"(?<![\w.>})*])/(?:" + "|".join(("work", "root", "home", "tmp")) + r")/")
LEFT_UNDONE = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) + r")\b")
NODE_NAME = re.compile(r'static\s+constexpr\s+auto\s+name\s*=\s*"(\w+)"')


def read(root, name):
    with open(os.path.join(root, name), "rb") as file:
        data = file.read()
    return None if b"\0" in data else data.decode("utf-8", errors="replace")


def licence(root):
    """Every source file says its licence in the first lines."""
    for name in files_of(root):
        if name.endswith(SOURCES) or name in SCRIPTS:
            head = read(root, name).split("\n")[:3]
            if not any("SPDX-License-Identifier: Apache-2.0" in line for line in head):
                yield f"{name}:1: no line `SPDX-License-Identifier: Apache-2.0` among the first three"


def text(root):
    """No path of one machine, and nothing left undone."""
    for name in files_of(root):
        contents = read(root, name)
        for number, line in enumerate((contents or "").split("\n"), start=1):
            if MACHINE_PATH.search(line):
                yield f"{name}:{number}: a path of one machine: {line.strip()[:100]}"
            if LEFT_UNDONE.search(line):
                yield f"{name}:{number}: something left undone: {line.strip()[:100]}"


def nodes(root):
    """Every node is in the generic table of the tests, which mentions it by name."""
    names = files_of(root)
    table = "\n".join(read(root, name) for name in names if name.startswith("tests/ops/node_table."))
    for name in names:
        if name.startswith("ops/") and name.endswith((".h", ".cpp")):
            for node in NODE_NAME.findall(read(root, name)):
                if not re.search(rf"\b{node}\b", table):
                    yield f"{name}: the node {node} is not in tests/ops/node_table.*"


def listed(root):
    """Every source and every page stands in a meson.build, or it would never be built, tested or installed."""
    names = files_of(root)
    pages = read(root, "tests/docs/meson.build") or ""
    for name in names:
        folder, file = os.path.split(name)
        if file.endswith(".md") and (name == "README.md" or folder == "docs"):
            if "```cpp" in read(root, name) and f"'{name}'" not in pages:
                yield f"{name}: has C++ blocks and is not listed in tests/docs/meson.build"
        top = folder.split("/")[0]
        sources = (".cpp", ".cu", ".h") if top in ("engine", "distributed", "ops") else (".cpp",)
        if top in ("engine", "distributed", "ops", "cli", "bench", "examples", "tests") and file.endswith(sources):
            build = "tests/meson.build" if top == "tests" and f"{folder}/meson.build" not in names else f"{top}/meson.build"
            if f"{folder}/meson.build" in names:
                build = f"{folder}/meson.build"
            inside = os.path.relpath(name, os.path.dirname(build))
            contents = read(root, build) or ""
            if f"'{inside}'" not in contents and f"'{os.path.splitext(inside)[0]}'" not in contents:
                yield f"{name}: is not listed in {build}"


RULES = {rule.__name__: rule for rule in (licence, text, nodes, listed)}


def main():
    faults = list(RULES[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "."))
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
