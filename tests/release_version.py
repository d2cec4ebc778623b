#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Checks that what has to repeat the version of CMakeLists.txt does, and that the functions which the
headers declare are those of the version scripts and of debian/*.symbols.

Status 1 and one line per finding when something is wrong; otherwise the version.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPEATED = {
    "debian/changelog": r"\Auwarp \(([^)]*)\)",
    "redhat/uwarp.spec": r"^Version:\s*(\S+)",
    "CHANGELOG.md": r"^## (\S+)",
}
# header, its functions, the symbols file of the package
LIBRARIES = [
    ("providers/uwarp/infiniband/uwarpdv.h", r"uwarpdv_\w+", "debian/libuwarp0.symbols"),
    ("rpcrdma/include/rpcrdma/rpcrdma.h", r"rpcrdma_\w+", "debian/librpcrdma0.symbols"),
]


def first(path, pattern):
    match = re.search(pattern, (ROOT / path).read_text(), re.M)
    return match[1] if match else None


def declared(header, pattern):
    text = re.sub(r"/\*.*?\*/", "", (ROOT / header).read_text(), flags=re.S)
    return set(re.findall(rf"^[a-z][\w \*]*?\b({pattern})\(", text, re.M))


def main():
    version = first("CMakeLists.txt", r"project\(uwarp VERSION ([\d.]+)")
    findings = []
    for path, pattern in REPEATED.items():
        named = first(path, pattern)
        if named != version:
            findings.append(f"{path} names version {named}, CMakeLists.txt {version}")
    changes = first("redhat/uwarp.spec", r"^%changelog\n\*.* - (\S+)-\d+$")
    if changes != version:
        findings.append(f"the newest entry of redhat/uwarp.spec is of {changes}, not {version}")
    for header, pattern, symbols in LIBRARIES:
        listed = set(re.findall(rf"^ ({pattern})@", (ROOT / symbols).read_text(), re.M))
        findings += [f"{symbols} and {header} do not agree about {name}"
                     for name in sorted(listed ^ declared(header, pattern))]
    print("\n".join(findings) or f"version {version}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
