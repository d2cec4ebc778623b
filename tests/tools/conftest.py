# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Fixtures: the two links, processes that are reaped, and ports that no other program uses."""

import itertools
import os
import socket

import pytest

import places

FIRST_PORT = 21000
LAST_PORT = 29999
LONG = ("applications", "containers")


def pytest_configure(config):
    """What takes minutes runs only when it is asked for by -m."""
    for mark in LONG:
        config.addinivalue_line("markers", f"{mark}: ./test.sh --{mark}")
    if not config.option.markexpr:
        config.option.markexpr = " and ".join(f"not {mark}" for mark in LONG)


def pytest_sessionstart(session):
    if hasattr(session.config, "workerinput"):
        # One of several workers of pytest-xdist: each has its own loopback, and so its own ports.
        places.enter_namespace()
    if not places.UWARP_RUN.exists():
        pytest.exit(f"{places.UWARP_RUN} does not exist: run ./build.sh first", returncode=3)


@pytest.fixture(scope="session")
def namespaces():
    if not places.can_unshare():
        pytest.skip("no right to make network namespaces (neither root nor user namespaces)")
    made = places.Namespaces()
    yield made
    made.close()


@pytest.fixture(scope="session", params=["loopback", "veth"])
def link(request):
    """Both ends on loopback, then in two network namespaces."""
    if request.param == "loopback":
        return places.loopback()
    return request.getfixturevalue("namespaces").link()


@pytest.fixture(scope="session")
def loopback():
    return places.loopback()


@pytest.fixture(scope="session")
def veth(namespaces):
    return namespaces.link()


@pytest.fixture(scope="module")
def pod(namespaces):
    """A network namespace with nothing but loopback, as a build job or a pod may have. Asks for
    `namespaces` so that a machine without them skips."""
    space = places.Namespace()
    space.ip("link", "set", "lo", "up")
    yield space
    space.close()


@pytest.fixture
def start():
    """start(command, place, ...) -> Process. What still runs at the end of the test is killed."""
    with places.started_processes() as run:
        yield run


_ports = itertools.cycle(range(FIRST_PORT + os.getpid() % 4000, LAST_PORT))


def free_port():
    """A TCP port that was free a moment ago and that no other test of this run gets."""
    for candidate in _ports:
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind(("::", candidate))
                return candidate
            except OSError:
                continue
    raise AssertionError("no free port")


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def other_port():
    return free_port()


@pytest.fixture
def pair(start, port):
    """pair(link, server_command, client_command) -> (server output, client output).

    Both must end with status 0. "{port}", "{address}", "{address6}" and "{device}" in the commands
    stand for the port of the test, the server's addresses and the own device.
    """

    def run(link, server, client, env=None, seconds=None, listen_port=None):
        def fill(command, place):
            return [str(part).format(port=port, address=link.server.address,
                                     address6=link.server.address6, device=place.device)
                    for part in command]

        passive = start(fill(server, link.server), link.server, env=env)
        places.wait_listening(passive, listen_port or port)
        active = start(fill(client, link.client), link.client, env=env)
        try:
            client_output = active.succeed(seconds)
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n==== the server: {passive}") from None
        return passive.succeed(seconds), client_output

    return run
