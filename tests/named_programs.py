#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Checks that demo.sh builds every program that README and the pages for users name as
`build/bin/PROGRAM`. The pages for developers may name programs of the whole build too, after they
have named `./build.sh`. It reads the build graph and builds nothing.

named_programs.py BUILD   status 1 and one line per program that a reader of the page does not have
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOR_DEVELOPERS = {"testing.md", "performance.md"}
WHOLE_BUILD = re.compile(r"\./build\.sh(?! -)")


def demo_target():
    """The target that demo.sh builds."""
    return re.search(r"^\./build\.sh -- (\S+)", (ROOT / "demo.sh").read_text(), re.M)[1]


def built(build, target):
    """Programs that the commands of that target link."""
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", target], check=True,
                              text=True, stdout=subprocess.PIPE).stdout
    return set(re.findall(r" -o bin/(\S+)", commands))


def missing(page, demo, whole):
    """Programs that the reader of a page does not have where the page first names them."""
    text = page.read_text()
    everything = WHOLE_BUILD.search(text) if page.name in FOR_DEVELOPERS else None
    found = set()
    for match in re.finditer(r"build/bin/([\w-]+)", text):
        has_everything = everything and everything.start() < match.start()
        if match[1] not in (whole if has_everything else demo):
            found.add(match[1])
    return found


def main():
    target = demo_target()
    demo, whole = built(sys.argv[1], target), built(sys.argv[1], "all")
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    findings = [f"{page.relative_to(ROOT)}: {name} is not built where the page names it"
                for page in pages for name in sorted(missing(page, demo, whole))]
    print("\n".join(findings) or f"{target} builds {' '.join(sorted(demo))}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
