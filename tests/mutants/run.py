#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the code on purpose, one fault at a time, and shows that the tests notice.

Each mutant is a file, a piece of text that stands in it once, and what replaces it. The tree is copied, built, and for each
mutant rebuilt and tested until a test fails; a mutant that no test notices survives, and the script fails.

usage: run.py [--only WORD…] [--list] [--keep]
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from mutants import MUTANTS  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEFT_BEHIND = shutil.ignore_patterns(".git", "build", "build-*", "__pycache__")
# The quickest to build first: what kills a mutant early saves the rest.
SUITES = ("engine", "distributed", "ops", "cli")


def command(words, cwd, timeout=1500):
    """The exit status and the output's tail."""
    try:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)
        return done.returncode, (done.stdout + done.stderr)[-4000:]
    except subprocess.TimeoutExpired:
        return 124, "timed out"


def failed_case(output):
    """The first failing test case that a doctest program names."""
    for line in output.splitlines():
        if line.startswith("TEST CASE:"):
            return line.removeprefix("TEST CASE:").strip()
    return output.strip().splitlines()[-1] if output.strip() else "no output"


def run_suites(build, tree):
    """The first failure of the tests in `build`, as (suite, case), or None where all pass."""
    for suite in SUITES:
        status, output = command(["ninja", "-C", str(build), f"tests/test_{suite}"], tree)
        if status != 0:
            return suite, "does not build: " + output.strip().splitlines()[-1]
        status, output = command([str(build / "tests" / f"test_{suite}"), "--abort-after=1"], tree, timeout=600)
        if status != 0:
            return suite, failed_case(output)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], help="mutants whose name or file contains one of these words")
    parser.add_argument("--list", action="store_true", help="list the mutants and stop")
    parser.add_argument("--keep", action="store_true", help="leave the copied tree for a look")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if any(word in m.name or word in m.file for word in options.only)]
    for mutant in chosen:
        count = (ROOT / mutant.file).read_text().count(mutant.old)
        if count != 1:
            sys.exit(f"{mutant.name}: its text stands {count} times in {mutant.file}, not once: mend the list")
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:44} {mutant.file}")
        return

    folder = pathlib.Path(tempfile.mkdtemp(prefix="losstape-mutants-"))
    tree, build = folder / "tree", folder / "build"
    shutil.copytree(ROOT, tree, ignore=LEFT_BEHIND)
    status, output = command(["meson", "setup", str(build), str(tree), "-Dbuildtype=debugoptimized", "-Dcuda=disabled"], tree)
    if status != 0:
        sys.exit(output)
    print("the unchanged tree …", flush=True)
    broken = run_suites(build, tree)
    if broken:
        sys.exit(f"the unchanged tree fails: {broken}")

    survivors = []
    for number, mutant in enumerate(chosen, 1):
        path = tree / mutant.file
        sound = path.read_text()
        path.write_text(sound.replace(mutant.old, mutant.new))
        start = time.monotonic()
        death = run_suites(build, tree)
        path.write_text(sound)
        if death is None:
            survivors.append(mutant.name)
        verdict = "SURVIVED" if death is None else f"killed by {death[0]}: {death[1]}"
        print(f"[{number}/{len(chosen)}] {mutant.name}: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    if not options.keep:
        shutil.rmtree(folder)
    print(f"{len(chosen) - len(survivors)} killed, {len(survivors)} survived")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
