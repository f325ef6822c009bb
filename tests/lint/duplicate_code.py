#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names the places of the product where code was copied: runs that differ at most in names, numbers and layout.

    duplicate_code.py [ROOT]

A run counts from 70 tokens over 8 lines on both sides. Fewer lines with as many tokens are tables of one-line functions.
"""
import re
import subprocess
import sys

from source_files import PRODUCT, files_of

TOKENS = 70
LINES = 8
RUN = re.compile(r"^(\S+): line (\d+)-(\d+)\s*\|(\S+): line (\d+)-(\d+)\s*\[(\d+)\]$")


def copies_in(root):
    """Lines of the report, one a pair."""
    names = [name for name in files_of(root) if name.startswith(PRODUCT) and name.endswith((".h", ".cpp", ".cu", ".cuh"))]
    if not names:
        return
    report = subprocess.run(["sim_c++", "-T", "-n", "-w", "400", "-r", str(TOKENS), *names], cwd=root, stdout=subprocess.PIPE,
                            text=True, check=True).stdout
    for line in report.split("\n"):
        found = RUN.match(line)
        if found is None:
            if "|" in line:
                sys.exit(f"a line of the report of sim_c++ that is not understood: {line}")
            continue
        one, begin, end, other, other_begin, other_end, tokens = found.groups()
        if min(int(end) - int(begin), int(other_end) - int(other_begin)) + 1 >= LINES:
            yield f"{one}:{begin}-{end}: the same as {other}:{other_begin}-{other_end} ({tokens} tokens)"


def main():
    copies = list(copies_in(sys.argv[1] if len(sys.argv) > 1 else "."))
    print("\n".join(copies), end="\n" if copies else "")
    sys.exit(1 if copies else 0)


if __name__ == "__main__":
    main()
