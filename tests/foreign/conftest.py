# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Where the suites are built, and a process for each of their tests."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))

import places  # noqa: E402  (found by the line above)

# ./test.sh --foreign sets it.
BUILT = pathlib.Path(os.environ.get("UWARP_FOREIGN", "build-foreign"))


@pytest.fixture
def start():
    """start(command, env) -> Process, under uwarp-run, on loopback."""
    with places.started_processes() as run:
        yield lambda command, env: run(command, env=env)
