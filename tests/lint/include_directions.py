#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes are root-relative and point the allowed way, and names the line at fault.

    include_directions.py [ROOT]
"""
import fnmatch
import os
import re
import sys

from source_files import files_of

ENGINE = ["engine/*"]
BELOW_DISTRIBUTED = [f"engine/{part}.h" for part in ("view", "dtype", "device", "error", "parallel")]
BELOW_OPS = [f"distributed/{part}.h" for part in ("communicator", "groups", "handshake", "vocab_shard")]
ANYTHING = ["*"]

# The first pattern that matches the including file decides what it may include.
ALLOWED = [
    ("engine/*", ENGINE),
    ("distributed/*", BELOW_DISTRIBUTED + ["distributed/*"]),
    # The oracle shares nothing with the kernels that it judges.
    ("ops/reference*", ENGINE + ["ops/reference*", "ops/packing.h"]),
    ("ops/*", ENGINE + BELOW_OPS + ["ops/*"]),
    ("cli/*", ENGINE + ["distributed/*", "ops/*", "cli/*"]),
    ("*", ANYTHING),
]
TOP = ("engine/", "distributed/", "ops/", "cli/", "bench/", "tests/", "examples/")
INCLUDE = re.compile(r'\s*#\s*include\s*(?:"([^"]+)"|<((?:engine|distributed|ops|cli|tests|bench|examples)/[^>]+)>)')


def faults_of(root):
    for name in files_of(root):
        if not name.startswith(TOP) or not name.endswith((".h", ".cpp", ".cu", ".cuh")):
            continue
        allowed = next(targets for pattern, targets in ALLOWED if fnmatch.fnmatch(name, pattern))
        with open(os.path.join(root, name), encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                found = INCLUDE.match(line)
                if not found:
                    continue
                target = found.group(1) or found.group(2)
                if found.group(2):
                    yield f'{name}:{number}: write "{target}" in quotes: it is ours'
                elif not target.startswith(TOP):
                    yield f'{name}:{number}: "{target}" is not relative to the root (other people\'s headers go in <>)'
                elif not os.path.exists(os.path.join(root, target)):
                    yield f'{name}:{number}: "{target}" does not exist'
                elif not any(fnmatch.fnmatch(target, pattern) for pattern in allowed):
                    yield f'{name}:{number}: may not include "{target}" (allowed: {", ".join(allowed)})'


def main():
    faults = list(faults_of(sys.argv[1] if len(sys.argv) > 1 else "."))
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
