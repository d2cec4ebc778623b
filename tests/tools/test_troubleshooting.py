# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The problems of docs/troubleshooting.md, made as they stand there.

A block with a prompt is an example: `$` or `client$` a command that ends, `server$` one that goes on
until the others have ended. What follows a command is what it prints among other things: lines in any
order, with `...` for anything. 192.0.2.7 and 7471 stand for the address and a port of the test's own.
"""

import os
import re

import pytest

import places

PAGE = places.ROOT / "docs" / "troubleshooting.md"
PROMPT = re.compile(r"^(server|client)?\$ (.*)$")


def examples():
    """(heading, [(side, command, expected lines), ...]) of each block with a prompt."""
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
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


@pytest.mark.parametrize("commands", examples())
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
