#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Checks that demo.sh builds every program that README and the pages for users name as
`build/bin/PROGRAM`. It reads the build graph and builds nothing. Pages that begin with the whole
build are left out.

named_programs.py BUILD   status 1 and one line per program that demo.sh does not build
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHOLE_BUILD = {"testing.md", "performance.md"}


def target():
    """The target that demo.sh builds."""
    return re.search(r"^\./build\.sh -- (\S+)", (ROOT / "demo.sh").read_text(), re.M)[1]


def built(build):
    """Programs that the commands of that target link."""
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", target()], check=True,
                              text=True, stdout=subprocess.PIPE).stdout
    return set(re.findall(r" -o bin/(\S+)", commands))


def named():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if page.name not in WHOLE_BUILD:
            for name in set(re.findall(r"build/bin/([\w-]+)", page.read_text())):
                yield page, name


def main():
    programs = built(sys.argv[1])
    findings = [f"{page.relative_to(ROOT)}: {target()} does not build {name}"
                for page, name in named() if name not in programs]
    print("\n".join(findings) or f"{target()} builds {' '.join(sorted(programs))}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
