#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Which functions of the engine one RDMA Write enters, from ibv_post_send() to sendmsg(), and in the
poll that receives it: data_path.py BUILD [BYTES].

`write_steps` tells the instructions that were executed. The debugging information of libuwarp.so says
of each in which functions it lies, also where they were inlined; the sources say how long these are.
Functions of fewer than four lines and constructors are not listed, nor lambdas, which are read with the
function that they stand in. Of a function two lines must have been executed: a single instruction may
be of another one that looks the same, with which the compiler has merged it."""

import functools
import os
import pathlib
import re
import subprocess
import sys
from collections import namedtuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ENGINE = ROOT / "providers" / "uwarp"
SHORTEST_LINES = 4
TRACES = 5

Function = namedtuple("Function", "file name first last")
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum)\b")


def blank(text):
    """The text with comments, literals and directives as spaces, so that braces are braces."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*'
    return re.sub(pattern, lambda found: re.sub(r"[^\n]", " ", found.group()), text,
                  flags=re.DOTALL | re.MULTILINE)


def name_of(head):
    """The name of the function that begins by `head`; empty if it is something else."""
    head = re.sub(r"\[\[.*?\]\]", " ", head, flags=re.DOTALL)
    parameters = head.find("(")
    if parameters < 0 or "=" in head[:parameters].replace("operator=", ""):
        return ""
    found = re.search(r"(~?\w+|operator\s*\S+)\s*$", head[:parameters])
    return found.group(1) if found else ""


@functools.cache
def functions_of(path):
    """The functions that are defined in a source, outermost only."""
    text = blank(path.read_text())
    found, scopes, start, depth = [], [], 0, 0
    for mark in re.finditer(r"[{};]|(?:public|private|protected):", text):
        character = mark.group()
        if character == "{":
            head = re.sub(r"\A(\s*)(template\s*<[^{}()]*?>(?=\s))",
                          lambda found: re.sub(r"[^\n]", " ", found.group()), text[start:mark.start()])
            open_scope = not depth and SCOPE.search(head.split("(")[0]) is not None
            name = "" if depth or open_scope else name_of(head)
            begin = start + len(head) - len(head.lstrip())
            scopes.append((open_scope, name, text.count("\n", 0, begin) + 1))
            depth += not open_scope
        elif character == "}" and scopes:
            open_scope, name, first = scopes.pop()
            depth -= not open_scope
            if name:
                found.append(Function(path.relative_to(ENGINE), name, first,
                                      text.count("\n", 0, mark.start()) + 1))
        start = mark.end()
    return found


def function_at(path, line):
    around = [each for each in functions_of(path) if each.first <= line <= each.last]
    return max(around, key=lambda each: each.first, default=None)


def is_constructor(function):
    text = (ENGINE / function.file).read_text().splitlines()
    head = " ".join(text[function.first - 1:function.first + 2])
    return bool(re.search(rf"\b{re.escape(function.name)}::~?{re.escape(function.name)}\s*\(", head)
                or re.search(rf"\b(class|struct) (\[\[\w+\]\] )?([A-Z_]+ )?{re.escape(function.name.lstrip('~'))}\b",
                             "\n".join(text)))


def one_trace(build, bytes_count):
    """The offsets of the instructions, for each way in order."""
    said = subprocess.run(
        [build / "bin" / "uwarp-run", build / "tests" / "write_steps", str(bytes_count)],
        env={**os.environ, "UWARP_SHM": "0"}, stdout=subprocess.PIPE, check=True, timeout=300, text=True)
    ways = {"down": [], "up": []}
    for line in said.stdout.splitlines():
        way, offset = line.split()
        ways[way].append(offset)
    return ways


def steps(build, bytes_count):
    """The shortest of several traces: one poll in 32 looks at all sockets of the process behind its
    own, and keys that share a slot are deciphered anew."""
    traces = [one_trace(build, bytes_count) for _ in range(TRACES)]
    return {way: min((trace[way] for trace in traces), key=len) for way in traces[0]}


def frames(library, offsets):
    """For each offset the places in the sources, from the innermost function outwards."""
    said = subprocess.run(["addr2line", "-a", "-i", "-e", library], input="\n".join(offsets),
                          stdout=subprocess.PIPE, check=True, timeout=300, text=True)
    places = []
    for line in said.stdout.splitlines():
        if line.startswith("0x"):
            places.append([])
            continue
        file, _, number = line.split(" ")[0].rpartition(":")
        if number.isdigit() and int(number) > 0:
            places[-1].append((pathlib.Path(os.path.normpath(file)), int(number)))
    return places


def entered(library, offsets):
    """The functions in the order in which they are entered."""
    lines = {}
    for place in frames(library, offsets):
        for file, line in reversed(place):
            if not file.is_relative_to(ENGINE) or not file.exists():
                continue
            function = function_at(file, line)
            if function is not None:
                lines.setdefault(function, set()).add(line)
    return [each for each, executed in lines.items()
            if each.last - each.first + 1 >= SHORTEST_LINES and len(executed) > 1
            and not is_constructor(each)]


def data_path(build, bytes_count=65536):
    library = (build / "lib" / "libuwarp.so").resolve()
    return {way: entered(library, offsets) for way, offsets in steps(build, bytes_count).items()}


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    for way, functions in data_path(build, *map(int, sys.argv[2:])).items():
        print(f"{way}: {len(functions)} functions in {len({each.file for each in functions})} files")
        for each in functions:
            print(f"  {each.file}:{each.first} {each.name}")


if __name__ == "__main__":
    main()
