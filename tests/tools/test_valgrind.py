# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Stock programs under valgrind: no error on either side, and no leak where the program itself gives
back all that it has made. Users run their own programs with --error-exitcode: what valgrind reports
must be of theirs."""

import pathlib
import shutil

import pytest

import places

pytestmark = pytest.mark.skipif(shutil.which("valgrind") is None,
                                reason="valgrind is not installed")

FOUND = 99
# Waits for a peer that valgrind slows down fiftyfold.
SECONDS = 4 * places.GUARD_SECONDS
OF_THE_PROGRAMS = pathlib.Path(__file__).parent / "valgrind.supp"
VALGRIND = ["valgrind", f"--error-exitcode={FOUND}", "--fair-sched=yes",
            f"--suppressions={OF_THE_PROGRAMS}"]
WITH_LEAKS = [*VALGRIND, "--leak-check=full", "--show-leak-kinds=definite",
              "--errors-for-leak-kinds=definite"]
PERFTEST = ["-d", "{device}", "-p", "{port}", "-F", "-s", "4096", "-n", "20"]

PROGRAMS = {
    "ibv_rc_pingpong": (["ibv_rc_pingpong", "-p", "{port}", "-g", "0", "-n", "20"], ["{address}"]),
    "ibv_ud_pingpong": (["ibv_ud_pingpong", "-p", "{port}", "-g", "0", "-n", "20"], ["{address}"]),
    "ib_send_bw": (["ib_send_bw", *PERFTEST], ["{address}"]),
    "ib_write_lat": (["ib_write_lat", *PERFTEST], ["{address}"]),
    "ib_read_bw": (["ib_read_bw", *PERFTEST], ["{address}"]),
    "ib_atomic_lat": (["ib_atomic_lat", *PERFTEST[:5], "-n", "20"], ["{address}"]),
}
NEEDS_ROCE = {"ibv_ud_pingpong"}
# The others are left to --applications.
EVERY_RUN = {"ibv_rc_pingpong", "ibv_ud_pingpong", "ib_write_lat"}


def check(process):
    status = process.wait(SECONDS)
    assert status == 0, f"{'valgrind has found errors' if status == FOUND else status}: {process}"
    # That of a new system call comes once, or from two threads at once.
    assert process.output.count("unhandled amd64-linux syscall") <= 2, process


@pytest.mark.parametrize("program", [
    pytest.param(program, marks=() if program in EVERY_RUN else pytest.mark.applications)
    for program in PROGRAMS])
def test_both_sides(start, loopback, port, program):
    server, client = PROGRAMS[program]

    def fill(words):
        return [word.format(port=port, address=loopback.server.address,
                            device=loopback.server.device) for word in words]

    valgrind = WITH_LEAKS if program.startswith("ibv_") else VALGRIND
    env = {"UWARP_PERSONA": "roce"} if program in NEEDS_ROCE else None
    passive = start(fill(valgrind + server), loopback.server, env=env)
    places.wait_listening(passive, port, SECONDS)
    active = start(fill(valgrind + server + client), loopback.client, env=env)
    check(active)
    check(passive)


def test_rping(start, loopback, port):
    command = VALGRIND + ["rping", "-p", str(port), "-C", "5"]
    passive = start(command + ["-s"], loopback.server)
    places.wait_listening(passive, port, SECONDS)
    check(start(command + ["-c", "-a", loopback.server.address], loopback.client))
    check(passive)


def test_devinfo(start, loopback):
    check(start(WITH_LEAKS + ["ibv_devinfo", "-v"], loopback.client))
