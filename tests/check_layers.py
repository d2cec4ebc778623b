#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Checks who includes whom under providers/uwarp.

providers/uwarp/layers.txt says what each room may include, and that it uses rooms above it in the list
only; what it says without need is a finding too. A type that one room alone declares may be named only
where that room may be included, also when it comes by an include of an include. The sans-IO rooms may include no
system header that gives them a socket, a clock or a thread, and may not read the environment. Exit
status 1 and one line per finding when something is wrong.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent / "providers" / "uwarp"
IO_HEADERS = re.compile(
    r"^(sys/(socket|epoll|poll|eventfd|timerfd|select|ioctl|un|time)\.h|netinet/.*|arpa/.*|net/.*|"
    r"netdb\.h|poll\.h|time\.h|ctime|chrono|thread|pthread\.h|future|condition_variable|"
    r"iostream|fstream|netlink/.*|linux/(if|netlink|rtnetlink).*)$"
)
IO_CALLS = re.compile(r"\b(getenv|clock_gettime|gettimeofday|fprintf|fputs|syslog)\s*\(")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
PRAGMA_ONCE = "#pragma once"
TYPE = r"(?:class|struct|enum class|enum|using|typename) (?:\[\[\w+\]\] )?(?:[A-Z_]+(?:\(\S*\))? )?([A-Z]\w+)\b(?!::)"
DECLARED = re.compile(r"^(?:template <[^;{]*> )?" + TYPE, re.M)  # of the namespace, which is not indented
INSIDE = re.compile(TYPE)
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|^\s*#[^\n]*', re.S | re.M)


class Layers:
    """The list: rooms in their order, what each uses, and which are sans-IO."""

    def __init__(self, path):
        self.uses, self.sans_io, self.findings = {}, set(), []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line or line.startswith("#"):
                continue
            room, words = line.split(":")
            uses = words.split()
            if "sans-io" in uses:
                uses.remove("sans-io")
                self.sans_io.add(room)
            self.findings += [
                f"{path.name}:{number}: {room} uses {used}, which is not above it" for used in uses if used not in self.uses
            ]
            self.uses[room] = set(uses)
        self.unused = {room: set(uses) for room, uses in self.uses.items()}

    def room_of(self, name):
        """The room of a path below providers/uwarp, None for what lies in none."""
        folder = pathlib.PurePath(name).parent
        for parent in (folder, *folder.parents):
            if str(parent) in self.uses:
                return str(parent)
        return None

    def complaint_about(self, room, quote, target):
        if quote == "<":
            return f"<{target}>: {room} is sans-IO" if room in self.sans_io and IO_HEADERS.match(target) else None
        used = self.room_of(target)
        if used is None:
            foreign = "/" in target or (ROOT.parent.parent / "kernel-abi" / target).exists()
            return None if foreign else f'"{target}": name the room in the path'
        self.unused[room].discard(used)
        if used != room and used not in self.uses[room]:
            return f'"{target}": {room} must not use {used}'
        return None

    def findings_in(self, room, path):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".h" and PRAGMA_ONCE not in text:
            yield 1, "no #pragma once"
        if "SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB" not in text.split("\n", 1)[0]:
            yield 1, "the first line is not the SPDX line"
        for number, line in enumerate(text.splitlines(), 1):
            include = INCLUDE.match(line)
            if include:
                complaint = self.complaint_about(room, include[1], include[2])
                if complaint:
                    yield number, complaint
            elif room in self.sans_io and IO_CALLS.search(line.split("//")[0]):
                yield number, f"{room} is sans-IO: {line.strip()}"


def foreign_names(layers, rooms):
    """Names that a file uses of a room which its own may not include. `rooms`: (path, room) of each file."""
    code = {path: NO_CODE.sub(" ", path.read_text(encoding="utf-8")) for path, _ in rooms}
    declared, own = {}, {}
    for path, room in rooms:
        own.setdefault(room, set()).update(INSIDE.findall(code[path]))
        for name in DECLARED.findall(code[path]) if path.suffix == ".h" else ():
            declared.setdefault(name, set()).add(room)
    owner = {name: next(iter(where)) for name, where in declared.items() if len(where) == 1}
    for path, room in rooms:
        for name in sorted({name for name in re.findall(r"\b[A-Z]\w+", code[path]) if name in owner}):
            used = owner[name]
            layers.unused[room].discard(used)
            if used != room and used not in layers.uses[room] and name not in own[room]:
                yield f"{path.relative_to(ROOT)}: {name} is of {used}, which {room} must not use"


def main():
    layers = Layers(ROOT / "layers.txt")
    findings = layers.findings
    files = sorted(path for path in ROOT.rglob("*") if path.suffix in (".h", ".cc"))
    rooms = [(path, layers.room_of(path.relative_to(ROOT))) for path in files]
    findings += foreign_names(layers, [(path, room) for path, room in rooms if room is not None])
    for path in files:
        name = path.relative_to(ROOT)
        room = layers.room_of(name)
        if room is not None:
            findings += [f"{name}:{number}: {text}" for number, text in layers.findings_in(room, path)]
        elif name.parent.name not in ("", "infiniband"):
            findings.append(f"{name}: in no room of layers.txt")
    for room, unused in layers.unused.items():
        findings += [f"layers.txt: {room} does not use {used}" for used in sorted(unused)]
    print("\n".join(findings) or f"{len(files)} files, no finding")
    return 1 if findings or not files else 0


if __name__ == "__main__":
    sys.exit(main())
