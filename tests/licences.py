#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Checks that each file of the source says its licence in its first three lines, and that it is the
project's. Pages, pictures, figures, and files whose format has no comments are covered by COPYING.

Status 1 and one line per finding when something is wrong.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LICENCE = re.compile(rb"SPDX-License-Identifier: GPL-2\.0 OR Linux-OpenIB(\s*(-->|\*/|#)?\s*)$")
HEAD_LINES = 3
COVERED = re.compile(
    r"^(COPYING|\.clang-format|\.gitignore|\.codespellrc)$|\.(md|svg|png|json|csv|in|abi)$|"
    r"^tests/fuzz/corpus/|"
    r"^debian/(?!rules|tests/[a-z-]+(\.sh)?$)|^debian/tests/control$")
# Where there is no git to ask.
MADE = re.compile(r"^(build|\.|obj-|debian/\.|debian/[\w.-]+/usr)|"
                  r"(^|/)(__pycache__|\.pytest_cache)/")


def files():
    try:
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], capture_output=True, check=False)
    except FileNotFoundError:
        return files_of_tarball()
    if listed.returncode != 0:
        return files_of_tarball()
    return [name for name in listed.stdout.decode().split("\0")
            if name and (ROOT / name).is_file()]


def files_of_tarball():
    """What a release has, and not what was built of it or left by Python."""
    names = (str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file())
    return [name for name in names if not MADE.search(name)]


def main():
    findings, count = [], 0
    for name in sorted(files()):
        if COVERED.search(name):
            continue
        count += 1
        head = (ROOT / name).read_bytes().split(b"\n", HEAD_LINES)[:HEAD_LINES]
        if not any(LICENCE.search(line) for line in head):
            findings.append(f"{name}: no SPDX line of the project's licence at its head")
    print("\n".join(findings) or f"{count} files")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
