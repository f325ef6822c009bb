#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks how count_tests.py counts: cases, skips, crashes, and programs that ran nothing."""
import json
import os
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "support", "count_tests.py")
GREEN = "[doctest] test cases:  5 |  5 passed | 0 failed | 0 skipped\n"
# (result, exit status, output, passed, failed, skipped)
RUNS = [
    ("OK", 0, GREEN, 5, 0, 0),
    ("OK", 0, "SKIPPED: no such device\n" + GREEN, 4, 0, 1),
    ("OK", 0, "[doctest] test cases: 5 | 5 passed | 0 failed | 2 skipped\n", 5, 0, 2),
    ("FAIL", 1, "[doctest] test cases: 5 | 3 passed | 2 failed | 0 skipped\n", 3, 2, 0),
    ("FAIL", 1, "\x1b[0;36m[doctest] \x1b[0mtest cases: 5 | 3 passed | 2 failed | 0 skipped\n", 3, 2, 0),
    ("FAIL", 1, GREEN + "LeakSanitizer: detected memory leaks\n", 5, 1, 0),
    ("FAIL", -11, "[doctest] doctest version is 2.4.9\n", 0, 1, 0),
    ("TIMEOUT", -9, "", 0, 1, 0),
    ("OK", 0, "[doctest] test cases: 0 | 0 passed | 0 failed | 0 skipped\n", 0, 1, 0),
    ("OK", 0, "", 1, 0, 0),
    ("FAIL", 1, "words\n", 0, 1, 0),
    ("SKIP", 77, "SKIPPED: no compiler\n", 0, 0, 1),
]


def last_line(entries):
    with tempfile.TemporaryDirectory() as build:
        os.mkdir(os.path.join(build, "meson-logs"))
        with open(os.path.join(build, "meson-logs", "testlog.json"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in entries)
        result = subprocess.run([sys.executable, SCRIPT, build], stdout=subprocess.PIPE, text=True, check=False)
    return result.stdout.rstrip().split("\n")[-1], result.returncode


def main():
    entries = []
    total = [0, 0, 0]
    for number, (result, code, output, passed, failed, skipped) in enumerate(RUNS):
        entry = {"name": f"losstape:suite / {number}", "stdout": output, "result": result, "returncode": code, "duration": 0.1}
        expected = f"{passed} passed, {failed} failed, {skipped} skipped"
        assert last_line([entry]) == (expected, 1 if failed else 0), (entry, last_line([entry]), expected)
        entries.append(entry)
        total = [total[0] + passed, total[1] + failed, total[2] + skipped]
    assert last_line(entries) == (f"{total[0]} passed, {total[1]} failed, {total[2]} skipped", 1)
    assert last_line([]) == ("0 passed, 0 failed, 0 skipped", 1)


if __name__ == "__main__":
    main()
