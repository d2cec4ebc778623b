# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""One open device per test, and pairs of connected queue pairs on it. Run under uwarp-run."""

import os

import pytest
from pyverbs.device import Context

from ends import End

DEVICE = os.environ.get("UWARP_TEST_DEVICE", "uwarp_lo")


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
