# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Fixtures: the victim, strangers, and how long each attack lasts."""

import os
import pathlib
import pwd
import socket
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))

import places  # noqa: E402  (found by the line above)
import stranger  # noqa: E402
import victim  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--seconds", type=int, default=1, help="how long each attack lasts")


def pytest_sessionstart():
    if not places.UWARP_RUN.exists():
        pytest.exit(f"{places.UWARP_RUN} does not exist: run ./build.sh first", returncode=3)


@pytest.fixture
def seconds(request):
    return request.config.getoption("--seconds")


def other_user():
    if os.geteuid() != 0:
        pytest.skip("needs root, to run the attacker as another user")
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        pytest.skip("there is no user nobody")


@pytest.fixture
def attacker():
    """attacker(NAME, argument..., own=False) -> Stranger: a program of attackers/ as the user
    `nobody`, or as the user of the victim."""
    started = []

    def run(name, *arguments, own=False):
        user = pwd.getpwuid(os.geteuid()) if own else other_user()
        started.append(stranger.Stranger(user, name, arguments))
        return started[-1]

    yield run
    for each in started:
        each.reap()


def settled_pair(folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pair = victim.Victim(folder, port)
    try:
        pair.warm_up()
        yield pair
    finally:
        pair.reap()


@pytest.fixture
def honest(tmp_path):
    """Two processes with honest connections between them, which have settled down."""
    yield from settled_pair(tmp_path)


@pytest.fixture(scope="module")
def bystanders(tmp_path_factory):
    """The same for attacks that do not reach them."""
    yield from settled_pair(tmp_path_factory.mktemp("bystanders"))
