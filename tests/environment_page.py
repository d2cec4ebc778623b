#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""docs/environment.md, and the part ENVIRONMENT of the manual page uwarp(7), are made from
`uwarp-run --help`, whose text is the table in base/settings.cc.

environment_page.py UWARP_RUN           writes both
environment_page.py --check UWARP_RUN   status 1 if one differs from what would be written
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "environment.md"
MANUAL = ROOT / "providers" / "uwarp" / "man" / "uwarp.7"
HEAD = """# Environment variables

Set them in front of the command: `UWARP_LOG=1 uwarp-run COMMAND`. If a value is not understood, uwarp prints one
line on stderr and uses the default. `uwarp-run --help` and `man uwarp` say the same as this page, which
`tests/environment_page.py` makes from the table in `providers/uwarp/base/settings.cc`. The options of uwarp-run(1)
(`--roce`, `--netdev`, ...) set some of them.

| variable | values | default | meaning |
| --- | --- | --- | --- |
"""
BEGIN = '.\\" settings: made by tests/environment_page.py\n'
END = '.\\" end of settings\n'


def settings(help_text):
    """(name, values, default, meaning) of each entry of the help text."""
    entries = re.findall(r"^  (UWARP_\w+) \((.*); default: (.*)\)\n((?: {8}.*\n)+)", help_text, re.M)
    return [(name, values, default, " ".join(meaning.split()))
            for name, values, default, meaning in entries]


def render_page(rows):
    lines = [f"| `{name}` | {values} | {default} | {meaning} |\n".replace("|stderr", "\\|stderr")
             for name, values, default, meaning in rows]
    return HEAD + "".join(lines)


def roff(text):
    return text.replace("\\", "\\e").replace("-", "\\-")


def render_manual(rows, present):
    """The manual page with what lies between the marks replaced."""
    before, rest = present.split(BEGIN)
    after = rest.split(END)[1]
    entries = [f".TP\n.B {name}\n{roff(meaning)}\n.br\n"
               f"Values: {roff(values)}; default: {roff(default)}.\n"
               for name, values, default, meaning in rows]
    return before + BEGIN + "".join(entries) + END + after


def main(arguments):
    check = arguments[:1] == ["--check"]
    program = arguments[-1]
    rows = settings(subprocess.run([program, "--help"], capture_output=True, text=True, check=True,
                                   timeout=60).stdout)
    status = 0
    for path, text in ((PAGE, render_page(rows)),
                       (MANUAL, render_manual(rows, MANUAL.read_text()))):
        if not check:
            path.write_text(text)
        elif path.read_text() != text:
            print(f"{path} is out of date: run tests/environment_page.py {program}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
