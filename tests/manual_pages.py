#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Checks the manual pages: each command and each function of the headers has one, man finds nothing
to warn of, and pages refer only to pages that exist, as far as they are ours.

Status 1 and one line per finding when something is wrong.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["nfs", "providers/uwarp/man", "rpcrdma/man", "tools"]
HEADERS = ["providers/uwarp/infiniband/uwarpdv.h", "rpcrdma/include/rpcrdma/rpcrdma.h"]
OURS = re.compile(r"(uwarp|rpcrdma|nfs-rdma)")


def pages():
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.[1-8]"))


def names(path):
    """What the page describes, by its NAME section."""
    match = re.search(r"^\.SH NAME\n(.*?) \\- .+$", path.read_text(), re.M | re.S)
    return re.split(r"[,\s]+", match[1].strip()) if match else []


def commands():
    """Programs that CMake installs."""
    found = set()
    for path in [*ROOT.glob("*/CMakeLists.txt"), *ROOT.glob("*/*/CMakeLists.txt")]:
        text = path.read_text()
        for target in re.findall(r"install\(TARGETS (\w+) RUNTIME", text):
            output = re.search(rf"set_target_properties\({target} PROPERTIES\s+OUTPUT_NAME (\S+?)\)",
                               text)
            found.add(output[1] if output else target)
    return found


def functions():
    found = set()
    for header in HEADERS:
        text = re.sub(r"/\*.*?\*/", "", (ROOT / header).read_text(), flags=re.S)
        found |= set(re.findall(r"^[a-z][\w \*]*?\b((?:uwarpdv|rpcrdma)_\w+)\(", text, re.M))
    return found


def warnings_of(path):
    """As Debian's lintian has man read pages."""
    run = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(path)],
                         capture_output=True, text=True, check=False, timeout=60,
                         env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80",
                              "MANROFFSEQ": ""})
    return run.stderr.splitlines() + ([] if run.returncode == 0 else [f"status {run.returncode}"])


def main():
    findings = []
    described = {}
    for path in pages():
        section = path.suffix[1:]
        here = names(path)
        if path.stem not in here:
            findings.append(f"{path}: its NAME section does not begin the page's own name")
        for name in here:
            described[(name, section)] = path
    for name in sorted(commands()):
        if (name, "1") not in described:
            findings.append(f"{name}: no manual page in section 1")
    for name in sorted(functions()):
        if (name, "3") not in described:
            findings.append(f"{name}: no manual page in section 3")
    for path in pages():
        for name, section in re.findall(r"^\.BR ([\w-]+) \((\d)\)", path.read_text(), re.M):
            if OURS.match(name) and (name, section) not in described:
                findings.append(f"{path}: refers to {name}({section}), which is nowhere")
        if shutil.which("man"):
            findings += [f"{path}: {warning}" for warning in warnings_of(path)]
    if not shutil.which("man"):
        print("man is not installed: the pages were not formatted")
    print("\n".join(findings) or f"{len(pages())} pages, {len(described)} names")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
