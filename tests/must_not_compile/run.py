#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the compiler refuses a file, and says why.

    run.py BUILD_FOLDER FILE

One of the file's first lines is `// expect: REGEX`, searched in the diagnostics, or `// expect: success`. The compiler and
its flags are those that Meson wrote down for control.cpp, so they are the ones the library is built with.
"""
import json
import os
import re
import shlex
import subprocess
import sys


def command_for(build, source):
    """The compile command of control.cpp, turned to `source` and to checking only."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entry = next(e for e in json.load(file) if e["file"].endswith("must_not_compile/control.cpp"))
    arguments = shlex.split(entry["command"])
    with_value = {"-o", "-MF", "-MQ", "-MT"}
    kept = []
    skip = False
    for argument in arguments:
        if skip or argument in with_value:
            skip = not skip
        elif argument not in {"-c", "-MD", "-MMD", "-fdiagnostics-color=always", entry["file"]}:
            kept.append(argument)
    return kept + ["-fsyntax-only", os.path.abspath(source)], entry["directory"]


def main():
    build, source = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        head = [next(file, "") for _ in range(5)]
    expected = next((m.group(1) for m in (re.match(r"// expect: (.+)", line) for line in head) if m), None)
    if expected is None:
        sys.exit(f"{source}: no `// expect: REGEX` in its first lines")

    command, directory = command_for(build, source)
    environment = dict(os.environ, LC_ALL="C")  # plain quotes and English words
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    print(result.stderr)
    if expected == "success":
        if result.returncode != 0:
            sys.exit(f"{source}: must compile, and does not")
    elif result.returncode == 0:
        sys.exit(f"{source}: must not compile, and does")
    elif not re.search(expected, result.stderr):
        sys.exit(f"{source}: refused, but the diagnostics have no match for: {expected}")


if __name__ == "__main__":
    main()
