#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs an example and compares what it prints with the comment that ends its source.

    run_example.py PROGRAM SOURCE

The source ends with `// Output:` and then one `// line` for each line printed (`//` for an empty one).
"""
import subprocess
import sys


def expected_output(source):
    with open(source, encoding="utf-8") as file:
        lines = file.read().rstrip().split("\n")
    if "// Output:" not in lines:
        sys.exit(f"{source}: does not end with a comment `// Output:`")
    block = lines[lines.index("// Output:") + 1:]
    for line in block:
        if line != "//" and not line.startswith("// "):
            sys.exit(f"{source}: after `// Output:` only comment lines may follow, found: {line}")
    return [line[3:] for line in block]


def main():
    program, source = sys.argv[1:]
    expected = expected_output(source)
    result = subprocess.run([program], stdout=subprocess.PIPE, text=True, encoding="utf-8", check=False)
    printed = result.stdout.rstrip("\n").split("\n") if result.stdout else []
    printed = [line.rstrip() for line in printed]
    if result.returncode != 0:
        print(result.stdout)
        sys.exit(f"{source}: exit status {result.returncode}")
    for number, (want, got) in enumerate(zip(expected, printed), start=1):
        if want.rstrip() != got:
            sys.exit(f"{source}: line {number} of the output\n  expected: {want}\n  printed:  {got}")
    if len(expected) != len(printed):
        print(result.stdout)
        sys.exit(f"{source}: expected {len(expected)} lines of output, printed {len(printed)}")


if __name__ == "__main__":
    main()
