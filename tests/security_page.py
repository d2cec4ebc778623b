#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Whether each row of docs/security.md's table names what shows it, and that exists: a GoogleTest
(Suite.Test or Suite.*), a function of pytest, a file, or a fuzz target."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "security.md"
FOLDERS = ("tests", "pyverbs-tests", "rpcrdma", "nfs")


def sources(pattern):
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob(pattern)


def google_tests():
    pattern = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)", re.M)
    return {pair for path in sources("*.cc") for pair in pattern.findall(path.read_text())}


def python_tests():
    pattern = re.compile(r"^\s*def (test_\w+)", re.M)
    return {name for path in sources("*.py") for name in pattern.findall(path.read_text())}


def rows():
    """The last column of each row of the table, and the line's number."""
    inside = False
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        if line.startswith("| who |"):
            inside = True
        elif inside and not line.startswith("|"):
            return
        elif inside and not line.startswith("| ---"):
            yield number, line.rstrip("| ").rsplit(" | ", 1)[-1]


def unknown(cell, google, python):
    names = re.findall(r"`([^`]+)`", cell)
    if not names and "](#" not in cell:
        yield "names no test"
    for name in names:
        suite, _, test = name.partition(".")
        if name.startswith("test_"):
            found = name in python
        elif "/" in name:
            found = (ROOT / name).exists()
        elif test:
            found = any(suite == each and test in ("*", one) for each, one in google)
        else:
            found = (ROOT / "tests" / "fuzz" / f"{name}_fuzz.cc").exists()
        if not found:
            yield f"{name} does not exist"


def main():
    google, python = google_tests(), python_tests()
    count, wrong = 0, 0
    for number, cell in rows():
        count += 1
        for what in unknown(cell, google, python):
            print(f"docs/security.md:{number}: {what}")
            wrong += 1
    print(f"{count} rows, {wrong} wrong")
    return 1 if wrong or not count else 0


sys.exit(main())
