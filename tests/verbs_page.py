#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Keeps docs/verbs.md true: status 1 and a line for each thing that it does not say, or says alone.

- Every ibv_* call that applications can make (exported by libibverbs, or an inline function of its
  header) is in the first column of a table row.
- Every errno that a row names is provoked by a row of the table in
  tests/verbs/documented_errors_test.cc, which makes the call and looks; and no row of that table is
  about an errno of which the page does not speak.
- Each test that the page names (`Suite.Test`, or `Suite.*`) exists.
"""

import errno
import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "verbs.md"
PROVOKED = ROOT / "tests" / "verbs" / "documented_errors_test.cc"
HEADER = pathlib.Path("/usr/include/infiniband/verbs.h")
# In the header, but no call: a macro for static linking.
NO_CALLS = {"ibv_static_providers"}


def library():
    listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    return re.search(r"libibverbs\.so\.1 .*=> (\S+)", listing.stdout)[1]


def calls():
    """Names of all calls, without what libibverbs exports to providers only."""
    symbols = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library()],
                             capture_output=True, text=True, check=True).stdout
    exported = set(re.findall(r" (ibv_\w+)@@?IBVERBS_1\.", symbols))
    inline = set(re.findall(r"\b(ibv_\w+)\(", HEADER.read_text()))
    return (exported | inline) - NO_CALLS


def rows():
    """(calls, errnos) of each row; a row that starts with "..." is about the calls above it."""
    above, of_calls = [], False
    for line in PAGE.read_text().splitlines():
        if not line.startswith("| "):
            of_calls = False
        elif line.startswith("| call |"):
            of_calls = True
        if not of_calls:
            continue
        first, _, rest = line[2:].partition(" | ")
        names = re.findall(r"`((?:ibv|IBV_WR)_[\w*]+)`", first)
        if names and not first.startswith("..."):
            above = names
        elif not first.startswith("..."):
            above = []
        named = {word for word in re.findall(r"\bE[A-Z]+\b", rest)
                 if word in errno.errorcode.values() or word in ("EOPNOTSUPP", "ENOTSUP")}
        yield above, named


def provoked():
    return set(re.findall(r'^    \{"(\w+)", (E[A-Z]+),', PROVOKED.read_text(), re.M))


def gtests():
    """Suite.Test of each GoogleTest."""
    macro = re.compile(r"^TEST(?:_[FP])?\((\w+), (\w+)\)", re.M)
    sources = (ROOT / "tests").rglob("*_test.cc")
    return {".".join(found) for source in sources for found in macro.findall(source.read_text())}


def named_tests():
    return re.findall(r"`([A-Z]\w+\.(?:[A-Z]\w+|\*))`", PAGE.read_text())


def complaints():
    page = list(rows())
    patterns = [name for names, _ in page for name in names]
    for call in sorted(calls()):
        if not any(fnmatch.fnmatchcase(call, pattern) for pattern in patterns):
            yield f"{call} is in no row"
    tests = provoked()
    for names, named in page:
        for error in sorted(named):
            if not any((name, error) in tests for name in names):
                yield f"{error} of {', '.join(names) or 'a row without a call'} is not provoked"
    spoken_of = {(name, error) for names, named in page for name in names for error in named}
    for call, error in sorted(tests - spoken_of):
        yield f"{error} of {call} is provoked, but the page does not speak of it"
    existing = gtests()
    for name in named_tests():
        if not fnmatch.filter(existing, name):
            yield f"there is no test {name}"


def main():
    found = list(complaints())
    for line in found:
        print(f"{PAGE.name}: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
