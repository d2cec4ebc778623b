#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Adds up the results of all test runners.

totals.py FOLDER               prints "N passed, N failed, N skipped"; status 0 only if something
                               passed and nothing failed
totals.py --has-failure FILE   status 0 if the JUnit or GoogleTest report FILE names a failure

FOLDER holds JUnit reports of pytest, XML reports of GoogleTest, and a file "single" with one line
"passed|failed|skipped NAME" for each check that stands alone. With a file "coverage.json" of gcovr a
line in front of the totals says how much of each folder has run.
"""

import collections
import json
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") == "notrun":
        return "skipped"
    return "passed"


def report_outcomes(path):
    try:
        tree = ElementTree.parse(path)
    except (OSError, ElementTree.ParseError):
        return []
    return [outcome(case) for case in tree.iter("testcase")]


def percent(covered, total):
    return f"{100 * covered / total:.1f} %" if total else "-"


def coverage_line(path):
    """Lines that ran, of those that have code: in all, and by folder."""
    summary = json.loads(path.read_text())
    folders = collections.defaultdict(lambda: [0, 0])
    for each in summary["files"]:
        folder = folders[each["filename"].split("/")[0]]
        folder[0] += each["line_covered"]
        folder[1] += each["line_total"]
    parts = ", ".join(f"{name} {percent(*lines)}" for name, lines in sorted(folders.items()))
    return f"lines covered: {percent(summary['line_covered'], summary['line_total'])} ({parts})"


def main(arguments):
    if arguments[:1] == ["--has-failure"]:
        return 0 if "failed" in report_outcomes(arguments[1]) else 1
    folder = pathlib.Path(arguments[0])
    outcomes = [o for path in sorted(folder.glob("*.xml")) for o in report_outcomes(path)]
    single = folder / "single"
    if single.exists():
        outcomes += [line.split()[0] for line in single.read_text().splitlines()]
    coverage = folder / "coverage.json"
    if coverage.exists():
        print(coverage_line(coverage))
    passed, failed, skipped = (outcomes.count(o) for o in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
