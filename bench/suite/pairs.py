# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Runs a server and a client and gives back what the client printed.

Places, processes that do not outlive us, and namespaces are those of the tests.
"""

import contextlib
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests" / "tools"))
import places  # noqa: E402  (BUILD comes from the environment that bench/run has set)

# Far above what any row takes on a machine that works.
GUARD_SECONDS = 60
SERVER_END_SECONDS = 10

_ports = itertools.cycle(range(15000 + os.getpid() % 3000, 20000))


NOT_OFFERED_STATUS = 77


class Failed(Exception):
    """A contender could not be measured; the text says why."""


class NotOffered(Failed):
    """A contender cannot do what the row asks for."""


def free_port():
    for candidate in _ports:
        with socket.socket() as probe:
            try:
                probe.bind(("", candidate))
                return candidate
            except OSError:
                continue
    raise Failed("no free port")


def run_pair(link, server, client, uwarp=False, env=None, server_stays=False):
    """The client's output. In the commands {port}, {address} and {device} stand for the server's
    port and address and the own RDMA device, {netdev} for its network device, {siw_device} for
    that of the kernel's driver."""
    port = free_port()

    def fill(command, place):
        return [str(part).format(port=port, address=link.server.address, device=place.device,
                                 netdev=place.device.removeprefix("uwarp_"),
                                 siw_device=getattr(place, "siw_device", None))
                for part in command]

    def filled(place):
        return {key: value.format(netdev=place.device.removeprefix("uwarp_"))
                for key, value in (env or {}).items()}

    passive = places.Process(fill(server, link.server), link.server, uwarp, filled(link.server))
    active = None
    try:
        places.wait_listening(passive, port)
        active = places.Process(fill(client, link.client), link.client, uwarp, filled(link.client))
        output = active.succeed(GUARD_SECONDS)
        if not server_stays:
            passive.wait(SERVER_END_SECONDS)
        return output
    except AssertionError as failure:
        if active and active.child.returncode == NOT_OFFERED_STATUS:
            raise NotOffered(active.output.strip()) from None
        raise Failed(f"{failure}\nserver: {passive}") from None
    finally:
        for process in filter(None, (active, passive)):
            process.reap()


@contextlib.contextmanager
def one_core_busy():
    """The first of our processors is taken by another process, which wants all of it."""
    core = min(os.sched_getaffinity(0))

    def prepare():
        places.die_with_parent()
        os.sched_setaffinity(0, {core})

    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=prepare)
    try:
        yield
    finally:
        busy.send_signal(signal.SIGKILL)
        busy.wait()


class Veth(places.Namespaces):
    """Two network namespaces joined by veth with the MTU asked for."""

    def __init__(self, mtu):
        self.MTU = mtu
        super().__init__()
