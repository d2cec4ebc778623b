#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Checks that a forked child begins anew with all that a process or a thread has for itself.

process_state.py BUILD takes every variable that lives as long as its process or thread from the symbols of the
libraries in BUILD/lib, so that none is missed. Each is declared with a type that knows about fork() (TYPES;
providers/uwarp/base/fork.h describes them), is constant, or stands in providers/uwarp/process_state.txt with the
reason why a child may have it as it is. Nothing is initialised under a guard, which another thread may hold at
the moment of a fork. There is one call of pthread_atfork(). Exit status 1 and one line per finding.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = [ROOT / "providers" / "uwarp", ROOT / "rpcrdma"]
REASONS = ROOT / "providers" / "uwarp" / "process_state.txt"
LIBRARIES = ["libuwarp.so", "libuwarp-preload.so", "libuwarp-rdmav34.so", "libuwarp-tls.so",
             "librpcrdma.so"]
FORK_HANDLER = ROOT / "providers" / "uwarp" / "base" / "fork.cc"

TYPES = re.compile(
    r"\b(ProcessOwn|ProcessLock|Inherited|Fact|SerialNumbers|InForkedChild|CollapsedLog|CachedDeviceScan|"
    r"Real|std::once_flag|pthread_once_t)\b"
)
SECTIONS = {".data", ".bss", ".tdata", ".tbss"}
OF_THE_COMPILER = re.compile(r"^(completed\.\d+|__\w+|DW\.ref\..*|_\w+_TABLE_|_DYNAMIC)$")
OF_THREAD_OWN = re.compile(r"\bthread_own<.*>\(\)::(place|emptying|generation)$")
GUARD = "guard variable for "
SYMBOL = re.compile(r"^[0-9a-f]+ .{7} (\S+)\s+[0-9a-f]+\s+(?:\.hidden )?(.+)$")


def variables(library):
    """The names of what a library can change, as the language writes them."""
    listing = subprocess.run(["objdump", "--syms", str(library)], check=True, capture_output=True, text=True).stdout
    mangled = []
    for line in listing.splitlines():
        symbol = SYMBOL.match(line)
        if symbol and symbol[1] in SECTIONS and symbol[2] != symbol[1]:
            mangled.append(re.sub(r"(\.lto_priv|\.constprop|\.isra)\.\d+", "", symbol[2]))
    names = subprocess.run(["c++filt"], input="\n".join(mangled), check=True, capture_output=True, text=True).stdout
    names = (re.sub(r" \[clone [^]]*\]", "", name) for name in names.splitlines())
    return sorted({name for name in names if name and not OF_THE_COMPILER.match(name)})


def source_lines():
    for folder in SOURCES:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".cc", ".h"):
                yield from path.read_text(encoding="utf-8").splitlines()


class Declarations:
    """What the source says of variables that live as long as their process or thread."""

    def __init__(self):
        lived = re.compile(r"^(\s+(?=(inline )?(static|thread_local)\b))?[A-Za-z][^()]*?\w")
        self.lines = [line for line in source_lines() if lived.match(line) and not line.startswith("using ")]

    def of(self, name):
        declared = re.compile(rf"^[^(=]*[>\w*&]\s+([\w]+, )?(\w+::)?{re.escape(name)}\s*([;{{=,(\[]|__attribute__)")
        return [line for line in self.lines if declared.match(re.sub("<.*>", "<>", line))]

    def are_safe(self, name):
        found = self.of(name)
        return bool(found) and all(TYPES.search(line) or re.search(r"\bconst\b(?!.*\*.*\b" + name + ")", line) for line in found)


def reasons():
    found = {}
    for line in REASONS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, reason = line.partition("  because ")
            found[name] = reason
    return found


def main():
    libraries = [pathlib.Path(sys.argv[1]) / "lib" / name for name in LIBRARIES]
    declarations, known, findings, count = Declarations(), reasons(), [], 0
    used = set()
    for library in libraries:
        for name in variables(library):
            count += 1
            if OF_THREAD_OWN.search(name):
                continue
            if name in known:
                used.add(name)
            elif name.startswith(GUARD):
                findings.append(f"{library.name}: {name[len(GUARD):]} is made under a guard, which a thread may hold during a fork")
            elif not declarations.are_safe(re.sub(r"\[abi:\w+\]$", "", name).rpartition("::")[2]):
                findings.append(f"{library.name}: {name} is not of a type that knows about fork(), nor in {REASONS.name}")
    findings += [f"{REASONS.name}: there is no {name}" for name in sorted(set(known) - used)]
    findings += [f"{REASONS.name}: {name} has no reason" for name, reason in known.items() if not reason]
    for folder in SOURCES:
        for path in sorted(folder.rglob("*.cc")):
            if path != FORK_HANDLER and "pthread_atfork(" in path.read_text(encoding="utf-8"):
                findings.append(f"{path.relative_to(ROOT)}: pthread_atfork() is called in base/fork.cc only; use InForkedChild")
    print("\n".join(findings) or f"{count} variables, no finding")
    return 1 if findings or not count else 0


if __name__ == "__main__":
    sys.exit(main())
