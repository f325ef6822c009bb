#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the tests of a Meson run, each doctest case as one.

    count_tests.py BUILD_FOLDER [--filtered]

Reads meson-logs/testlog.json. Shows the output of what failed and the reasons of what was skipped, then a line for each suite, and
at last `N passed, N failed, N skipped`. The exit status is 1 when anything failed or nothing ran.

A doctest program counts by its line `[doctest] test cases: …`; a case that cannot run here prints a line `SKIPPED: reason`, and is
then not counted as passed. Any other test counts once; exit status 77 means skipped. A crash, a timeout, a leak found at exit, or a
doctest program that ran no case is a failure. With --filtered (cases were selected by name) cases left out are not counted.
"""
import json
import os
import re
import sys

SUMMARY = re.compile(r"\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed\s*\|\s*(\d+) skipped")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
REASON = re.compile(r"^SKIPPED: (.*)$", re.MULTILINE)
SHOWN_LINES = 200


class Count:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def count_of(entry, output, filtered):
    """The count of one entry of the log, and the reasons of what was skipped."""
    reasons = REASON.findall(output)
    good = entry["result"] in ("OK", "SKIP")
    summary = SUMMARY.search(output)
    if summary is None and "[doctest]" not in output:
        if entry["result"] == "SKIP":
            return Count(skipped=1), reasons or ["no reason given"]
        return (Count(passed=1) if good else Count(failed=1)), []
    cases, passed, failed, left_out = map(int, summary.groups()) if summary else (0, 0, 0, 0)
    if failed == 0 and (not good or (cases == 0 and not filtered)):
        failed = 1
    skipped = len(reasons)
    count = Count(max(passed - skipped, 0), failed, skipped)
    if left_out and not filtered:
        count.skipped += left_out
        reasons.append(f"{left_out} cases marked with doctest::skip")
    return count, reasons


def show_failure(name, entry, output):
    lines = output.rstrip().split("\n")
    print(f"--- {name}: {entry['result']}, exit status {entry['returncode']}")
    if len(lines) > SHOWN_LINES:
        print(f"(the last {SHOWN_LINES} of {len(lines)} lines)")
    print("\n".join(lines[-SHOWN_LINES:]))
    print("---")


def main():
    build = sys.argv[1]
    filtered = "--filtered" in sys.argv[2:]
    log = os.path.join(build, "meson-logs", "testlog.json")
    entries = []
    if os.path.exists(log):
        with open(log, encoding="utf-8") as file:
            entries = [json.loads(line) for line in file]

    total = Count()
    suites = {}
    skipped = []
    for entry in entries:
        # "losstape:suite / name", or only the name where the project has a single suite
        suite, _, name = entry["name"].rpartition(" / ")
        suite = suite.partition(":")[2] or name
        output = COLOUR.sub("", entry.get("stdout", "") + "\n" + entry.get("stderr", ""))
        count, reasons = count_of(entry, output, filtered)
        if count.failed:
            show_failure(entry["name"], entry, output)
        skipped += [f"skipped in {suite}/{name}: {reason}" for reason in reasons]
        tally, seconds = suites.get(suite, (Count(), 0.0))
        tally.add(count)
        suites[suite] = (tally, seconds + entry["duration"])
        total.add(count)

    for line in skipped:
        print(line)
    for suite, (count, seconds) in sorted(suites.items()):
        print(f"{suite:<18}{count}  ({seconds:.1f} s)")
    if not entries:
        print("no test ran")
    print(total)
    sys.exit(1 if total.failed or not entries else 0)


if __name__ == "__main__":
    main()
