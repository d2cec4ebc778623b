# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Runs the examples of docs/troubleshooting.md, from-siw-and-rxe.md and README, and looks for the lines that they show.

A block with a prompt is an example: `$` or `client$` before a command that ends, `server$` before one
that runs until the others have ended. The lines below a command are lines that it prints, in any order
and among others; `...` stands for anything. The test replaces 192.0.2.7 and 7471 by its own address and
port. In README numbers may differ, and what is said of eth0 and of running processes.
"""

import os
import re

import pytest

import places

PAGE = places.ROOT / "docs" / "troubleshooting.md"
OF_SIW_AND_RXE = places.ROOT / "docs" / "from-siw-and-rxe.md"
README = places.ROOT / "README.md"
PROMPT = re.compile(r"^(server|client)?\$ (.*)$")


def examples(page):
    """(heading, [(side, command, expected lines), ...]) of each block with a prompt."""
    for section in re.split(r"^## ", page.read_text(), flags=re.M)[1:]:
        heading = section.splitlines()[0]
        for block in re.findall(r"^```\n(.*?)^```", section, re.M | re.S):
            commands = []
            for line in block.splitlines():
                prompt = PROMPT.match(line)
                if prompt:
                    commands.append((prompt[1], prompt[2], []))
                elif commands:
                    commands[-1][2].append(line)
            if commands:
                yield pytest.param(commands, id=heading.replace(" ", "_"))


def matches(line, output):
    pattern = ".*".join(re.escape(" ".join(part.split())) for part in line.split("..."))
    pattern = pattern.replace(r"\ .*", ".*").replace(r".*\ ", ".*")
    return any(re.search(pattern, " ".join(one.split())) for one in output.splitlines())


@pytest.mark.parametrize("commands", [*examples(PAGE), *examples(OF_SIW_AND_RXE)])
def test_problem(commands, start, port):
    if any("unshare" in command for _, command, _ in commands) and not places.can_unshare():
        pytest.skip("no right to make network namespaces")
    path = f"{places.BUILD / 'bin'}:{os.environ['PATH']}"

    def localise(text):
        return text.replace("192.0.2.7", "127.0.0.1").replace("7471", str(port))

    servers = []
    for side, command, expected in commands:
        process = start(["sh", "-c", localise(command)], uwarp=False, env={"PATH": path})
        expected = [localise(line) for line in expected]
        if side == "server":
            places.wait_listening(process, port)
            servers.append((process, expected))
            continue
        process.wait(places.GUARD_SECONDS * 2)
        for line in expected:
            assert matches(line, process.output), f"not printed: {line}\n{process}"
    for process, expected in servers:
        for line in expected:
            places.wait_until(lambda line=line, server=process: matches(line, server.output),
                              lambda line=line, server=process: f"{line} by {server}")


def figures_removed(text):
    return re.sub(r"\b[0-9a-f.:/]*[0-9][0-9a-f.:/]*[kMG]?\b", "N", text)


@pytest.mark.parametrize("commands", examples(README))
def test_readme(commands, start, port):
    servers = []
    for side, command, expected in commands:
        words = command.replace("build/bin/", f"{places.BUILD}/bin/").split()
        more = ["-p", port] if "ib_write_bw" in words else []
        process = start([*words, *more], uwarp=False)
        if side == "server":
            places.wait_listening(process, port)
            servers.append(process)
            continue
        # A machine with loopback alone gets a warning.
        output = figures_removed(process.succeed()).replace("ready, with N warning", "ready")
        for line in expected:
            if "eth0" not in line and not re.match(r" *\d+ +(ib_write_bw|processes)", line):
                assert matches(figures_removed(line), output), f"not printed: {line}\n{process}"
    for process in servers:
        process.succeed()
