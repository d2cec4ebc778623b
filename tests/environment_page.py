#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""docs/environment.md is made from `uwarp-run --help`, whose text is the table in base/settings.cc.

environment_page.py UWARP_RUN           writes the page
environment_page.py --check UWARP_RUN   status 1 if the page differs from what would be written
"""

import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "environment.md"
HEAD = """# Environment variables

Made from the table in `providers/uwarp/base/settings.cc` by `tests/environment_page.py`; the same as
`uwarp-run --help`. A bad value gives one line on stderr, and the default is used.

| variable | values | default | meaning |
| --- | --- | --- | --- |
"""


def settings(help_text):
    """(name, values, default, meaning) of each entry of the help text."""
    entries = re.findall(r"^  (UWARP_\w+) \((.*); default: (.*)\)\n((?: {8}.*\n)+)", help_text, re.M)
    return [(name, values, default, " ".join(meaning.split()))
            for name, values, default, meaning in entries]


def render(help_text):
    rows = [f"| `{name}` | {values} | {default} | {meaning} |\n".replace("|stderr", "\\|stderr")
            for name, values, default, meaning in settings(help_text)]
    return HEAD + "".join(rows)


def main(arguments):
    check = arguments[:1] == ["--check"]
    program = arguments[-1]
    page = render(subprocess.run([program, "--help"], capture_output=True, text=True, check=True,
                                 timeout=60).stdout)
    if not check:
        PAGE.write_text(page)
    elif PAGE.read_text() != page:
        print(f"{PAGE} is out of date: run tests/environment_page.py {program}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
