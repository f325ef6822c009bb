#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the files of the repository, tracked or not yet, that git does not ignore.

    source_files.py [ROOT] [--in FOLDER,FOLDER] [--ending .h,.cpp]
"""
import argparse
import os
import subprocess

PRODUCT = ("engine", "distributed", "ops", "cli")


def files_of(root):
    """Paths relative to root, sorted. Without git, every file outside of hidden and build folders."""
    listed = subprocess.run(
        ["git", "-C", root, "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False) if os.path.exists(os.path.join(root, ".git")) else None
    if listed is not None and listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
    else:
        names = []
        for folder, folders, files in os.walk(root):
            folders[:] = [f for f in folders if f not in (".git", ".cache", "__pycache__") and not f.startswith("build")]
            names += [os.path.relpath(os.path.join(folder, file), root) for file in files]
    return sorted(name for name in set(names) if name and os.path.isfile(os.path.join(root, name)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", nargs="?", default=".")
    parser.add_argument("--in", dest="folders", default="")
    parser.add_argument("--ending", default="")
    arguments = parser.parse_args()
    folders = tuple(f + "/" for f in arguments.folders.split(",") if f)
    for name in files_of(arguments.root):
        if name.startswith(folders or "") and name.endswith(tuple(arguments.ending.split(","))):
            print(name)


if __name__ == "__main__":
    main()
