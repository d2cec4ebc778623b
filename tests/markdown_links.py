#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Checks the links of all Markdown pages: files that they lead to exist, and headings too. Addresses
of the web are not looked at. Every page of docs/ can be reached from docs/README.md.

Status 1 and one line per finding when something is wrong.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:")
HIDDEN = re.compile(r"^(\.(?!ci|github)|build($|-)|__pycache__)")


def pages():
    for path in sorted(ROOT.rglob("*.md")):
        if not any(HIDDEN.match(part) for part in path.relative_to(ROOT).parts):
            yield path


def prose(text):
    """The page without code."""
    text = re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path):
    """Names of the headings, as GitHub and GitLab make them."""
    found = {}
    text = re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", path.read_text(), flags=re.M | re.S)
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        if count:
            found[f"{name}-{count}"] = 1
    return set(found)


def check(page, reached):
    text = page.read_text()
    for target in LINK.findall(prose(text)):
        if ELSEWHERE.match(target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield f"{page.relative_to(ROOT)}: {target} is not there"
            continue
        if not path.is_relative_to(ROOT):
            yield f"{page.relative_to(ROOT)}: {target} leads out of the project"
            continue
        reached.setdefault(page, set()).add(path)
        if anchor and path.suffix == ".md" and anchor not in anchors(path):
            yield f"{page.relative_to(ROOT)}: {target} has no such heading"


def main():
    reached = {}
    findings = [finding for page in pages() for finding in check(page, reached)]
    front = ROOT / "docs" / "README.md"
    seen, todo = {front}, [front]
    while todo:
        for path in reached.get(todo.pop(), set()) - seen:
            seen.add(path)
            todo.append(path)
    findings += [f"{page.relative_to(ROOT)}: not to be reached from docs/README.md"
                 for page in pages() if page not in seen and page.parent == front.parent]
    count = sum(len(paths) for paths in reached.values())
    print("\n".join(findings) or f"{count} links in {len(list(pages()))} pages")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
