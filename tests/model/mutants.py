#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Writes the mutants of a model: the product's own source with one fault each.

    mutants.py MODEL_test.cc OUTPUT.h

A mutant is a comment in the model: its name and the files that it changes, the lines to remove and the lines
to put in their place, without indentation. The list of files may continue on the next line.

    // Mutant forgets_sleepers: progress/presence.h progress/epoll_muted_sources.h
    // - if (presence_.anybody_sleeps()) return false;
    // + if (count_ == kMost) return false;

It becomes the namespace uwarp::forgets_sleepers with everything that these files declare. A mutant may have
several changes. The lines to remove must be in the files exactly once. So the build fails if the source of a
mutant has changed.
"""

import pathlib
import re
import sys

PROVIDER = pathlib.Path(__file__).resolve().parents[2] / "providers" / "uwarp"


def mutants_of(model):
    """(name, files, changes) of each mutant; a change is a pair of lists of lines."""
    found = []
    for line in model.read_text(encoding="utf-8").splitlines():
        head = re.match(r"// Mutant (\w+): (.+)", line)
        if head:
            found.append((head[1], head[2].split(), []))
        elif found and not found[-1][2] and re.fullmatch(r"// \w+/\S+( \w+/\S+)*", line):
            found[-1][1].extend(line[3:].split())
        elif found and line.startswith("// - "):
            changes = found[-1][2]
            if not changes or changes[-1][1]:
                changes.append(([], []))
            changes[-1][0].append(line[5:].strip())
        elif found and line.startswith("// + "):
            found[-1][2][-1][1].append(line[5:].strip())
    return found


def changed(name, files, changes):
    lines = [line for file in files for line in (PROVIDER / file).read_text(encoding="utf-8").splitlines()]
    for old, new in changes:
        stripped = [line.strip() for line in lines]
        places = [i for i in range(len(lines)) if stripped[i : i + len(old)] == old]
        if len(places) != 1:
            sys.exit(f"mutant {name}: {old[0]} ... stands {len(places)} times in {' '.join(files)}")
        lines[places[0] : places[0] + len(old)] = new
    return "\n".join(lines).replace("namespace uwarp {", f"namespace uwarp::{name} {{")


def main():
    model, output = (pathlib.Path(argument) for argument in sys.argv[1:])
    output.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(changed(*mutant) for mutant in mutants_of(model)) + "\n"
    if not output.exists() or output.read_text(encoding="utf-8") != text:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
