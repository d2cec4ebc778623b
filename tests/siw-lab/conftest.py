# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Fixtures: the machine, who is where, and processes on either side that end with their test."""

import itertools
import os

import pytest

import vm
from vm import places

IW_CM_BUG = "kernel BUG at drivers/infiniband/core/iwcm.c"
FIRST_PORT, LAST_PORT = 7000, 9999  # The network is ours alone.


@pytest.fixture(scope="session")
def machine():
    if not places.can_unshare():
        pytest.skip("no right to make network namespaces (neither root nor user namespaces)")
    form = os.environ.get("UWARP_SIW_FORM", "qemu")
    vm.build_image(uml=form == "uml")
    running = vm.Vm(form)
    yield running
    running.close()


@pytest.fixture(autouse=True)
def stock_siw(machine):
    """siw's switches as they are compiled in Linux; what a test turns on ends with it. So does a
    guest whose kernel has stopped: the next test gets a fresh one."""
    yield
    if "kernel BUG" in machine.console():
        machine.restart()
    machine.guest.set_siw(**vm.STOCK)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """A test during which the guest stops by Linux's own mistake (docs/siw.md) says nothing about
    us. Any other stop, by a peer's bytes, counts as a failure."""
    report = (yield).get_result()
    machine = item.funcargs.get("machine")
    if report.failed and machine and IW_CM_BUG in machine.console():
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1], f"the guest: {IW_CM_BUG}")


@pytest.fixture
def start(machine):
    """start(place, command, env) -> Process, under uwarp-run on the host and plain in the guest."""
    with places.started_processes() as run:
        yield lambda place, command, env=None: run(command, place, uwarp=place is machine.host, env=env)


_ports = itertools.cycle(range(FIRST_PORT, LAST_PORT))


@pytest.fixture
def port():
    return next(_ports)


class Direction:
    """Who listens and who calls."""

    def __init__(self, machine, name):
        self.name = name
        self.machine = machine
        self.uwarp_listens = name == "siw calls uwarp"
        ends = (machine.host, machine.guest)
        self.server, self.client = ends if self.uwarp_listens else ends[::-1]

    def device(self, place):
        return place.device if place is self.machine.host else place.siw_device

    def programs(self, place):
        """Where that place has the test programs of the build."""
        return f"{places.BUILD if place is self.machine.host else vm.GUEST_BUILD}/tests"


@pytest.fixture(params=["uwarp calls siw", "siw calls uwarp"])
def direction(request, machine):
    return Direction(machine, request.param)


@pytest.fixture
def pair(direction, start, port):
    """pair(server command, client command, env) -> outputs of both, who must end with status 0, or
    be `excused`, of which one can be: a function of the process.

    "{port}", "{address}", "{address6}", "{device}" and "{tests}" in the commands stand for the
    port, the server's addresses, the own device and the folder of our own programs. `env` is for
    uwarp.
    """

    numbers = itertools.chain([port], _ports)  # the first call's is the test's own

    def fill(command, place, number):
        return [str(part).format(port=number, address=direction.server.address,
                                 address6=direction.server.address6,
                                 device=direction.device(place),
                                 tests=direction.programs(place))
                for part in command]

    def run(server, client, env=None, seconds=None, excused=None):
        def env_of(place):
            return env if place is direction.machine.host else None

        def succeed(process):
            if excused and process.wait(seconds) != 0 and excused(process):
                return process.output
            return process.succeed(seconds)

        number = next(numbers)
        passive = start(direction.server, fill(server, direction.server, number),
                        env_of(direction.server))
        places.wait_listening(passive, number)
        active = start(direction.client, fill(client, direction.client, number),
                       env_of(direction.client))
        try:
            output = succeed(active)
        except AssertionError as failure:
            passive.reap()
            raise AssertionError(f"{failure}\n==== the server: {passive}") from None
        return succeed(passive), output

    return run
