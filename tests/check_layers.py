#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Checks who includes whom under providers/uwarp.

A folder may include itself and the folders before it in LAYERS. The sans-IO folders may include no
system header that gives them a socket, a clock or a thread, and may not read the environment. The
preloaded part links nothing, so it may include plain declarations only. Exit status 1 and one line
per finding when something is wrong.
"""

import pathlib
import re
import sys

LAYERS = ["base", "stat", "wire", "fault", "mr", "mpa", "ddp", "rdmap", "qp", "io", "net", "cm", "host", "verbs"]
SANS_IO = {"stat", "wire", "fault", "mr", "mpa", "ddp", "rdmap", "qp"}
# Only declarations shared with the other side of a dlopen.
PRELOAD_MAY_USE = {"base", "host", "preload"}

IO_HEADERS = re.compile(
    r"^(sys/(socket|epoll|poll|eventfd|timerfd|select|ioctl|un|time)\.h|netinet/.*|arpa/.*|net/.*|"
    r"netdb\.h|poll\.h|time\.h|ctime|chrono|thread|pthread\.h|future|condition_variable|"
    r"iostream|fstream|netlink/.*|linux/(if|netlink|rtnetlink).*)$"
)
IO_CALLS = re.compile(r"\b(getenv|clock_gettime|gettimeofday|fprintf|fputs|syslog)\s*\(")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
PRAGMA_ONCE = "#pragma once"


def allowed_layers(folder):
    if folder == "preload":
        return PRELOAD_MAY_USE
    return set(LAYERS[: LAYERS.index(folder) + 1])


def check_include(folder, quote, target, root):
    """A complaint about one include line, or None."""
    first = target.split("/")[0]
    if quote == '"':
        if "/" not in target and not (root.parent.parent / "kernel-abi" / target).exists():
            return f'"{target}": name the layer in the path'
        if first in LAYERS + ["preload"] and first not in allowed_layers(folder):
            return f'"{target}": {folder} must not use {first}'
        return None
    if folder in SANS_IO and IO_HEADERS.match(target):
        return f"<{target}>: {folder} is sans-IO"
    return None


def check_file(path, root):
    folder = path.relative_to(root).parts[0]
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".h" and PRAGMA_ONCE not in text:
        yield 1, "no #pragma once"
    if "SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB" not in text.split("\n", 1)[0]:
        yield 1, "the first line is not the SPDX line"
    for number, line in enumerate(text.splitlines(), 1):
        include = INCLUDE.match(line)
        if include:
            complaint = check_include(folder, include[1], include[2], root)
            if complaint:
                yield number, complaint
        elif folder in SANS_IO and IO_CALLS.search(line.split("//")[0]):
            yield number, f"{folder} is sans-IO: {line.strip()}"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent / "providers" / "uwarp"
    files = [
        path
        for folder in LAYERS + ["preload"]
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in (".h", ".cc")
    ]
    findings = [
        f"{path.relative_to(root)}:{number}: {complaint}"
        for path in files
        for number, complaint in check_file(path, root)
    ]
    print("\n".join(findings) or f"{len(files)} files, no finding")
    return 1 if findings or not files else 0


if __name__ == "__main__":
    sys.exit(main())
