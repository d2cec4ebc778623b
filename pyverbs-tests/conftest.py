# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""One open device per test, and pairs of connected queue pairs on it. Run under uwarp-run."""

import os
import pathlib
import signal
import sys

import pytest
from pyverbs.device import Context

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("UWARP_BUILD", ROOT / "build")).resolve()
sys.path.insert(0, str(BUILD / "tests"))  # where the build puts uwarp_wire

# A hang guard for calls that block inside libibverbs: they end with EINTR, and the test with it.
GUARD_S = 60

from dut import Dut  # noqa: E402: needs the path
from ends import End  # noqa: E402

DEVICE = os.environ.get("UWARP_TEST_DEVICE", "uwarp_lo")


@pytest.fixture(autouse=True)
def guard():
    def give_up(*_):
        raise TimeoutError(f"the test hangs for {GUARD_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(GUARD_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def context():
    with Context(name=DEVICE) as context:
        yield context


@pytest.fixture
def pair(context):
    """Two ends, connected to each other."""
    with End(context, "a") as a, End(context, "b") as b:
        a.connect(b)
        b.connect(a)
        yield a, b


@pytest.fixture
def dut(context):
    """A queue pair that a raw peer can be connected to."""
    with Dut(context) as dut:
        yield dut


@pytest.fixture
def link(dut):
    """A device that has connected to a raw peer, and that peer."""
    return dut, dut.connect()


@pytest.fixture(params=["initiator", "responder with CRC"])
def either(request, dut):
    """As link, with the device in either role, and with CRCs in one of them."""
    if request.param == "initiator":
        return dut, dut.connect()
    return dut, dut.be_connected(crc=True)
