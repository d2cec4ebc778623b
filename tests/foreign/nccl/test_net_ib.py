# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""NCCL's transport over verbs, driven with memory of the host between two processes: tests/foreign/nccl/net_ib.cc
says what each subject does."""

import pytest
from conftest import BUILT

PROGRAM = BUILT / "nccl" / "bin" / "net_ib"
SECONDS = 300  # for one subject; each ends within ten
SKIPPED = 77

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="NCCL was not built")

WAYS = {
    "memory": {},
    "tcp": {"UWARP_SHM": "0"},
}

# What NCCL offers to choose from. Not with a flood: inline, as NCCL's messages for several receives are then larger
# than what it has asked for (EINVAL). Receives posted ahead work by ids only: else NCCL looks up a request at -1.
SETTINGS = {
    "four-queue-pairs": {"NCCL_IB_QPS_PER_CONNECTION": 4},
    "split": {"NCCL_IB_QPS_PER_CONNECTION": 4, "NCCL_IB_SPLIT_DATA_ON_QPS": 1},
    "by-id": {"NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME": 1},
    "receives-ahead": {"NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME": 1,
                       "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS": 1},
    "data-apart": {"NCCL_IB_ADAPTIVE_ROUTING": 1, "NCCL_IB_AR_THRESHOLD": 0},
    "failover": {"NCCL_IB_RESILIENCY_PORT_FAILOVER": 1},
    "flush": {"STAND_IN_PEERMEM": 1},
}


@pytest.fixture
def drive(start):
    """drive(persona, subject, device, env) -> what net_ib printed."""
    def run(persona, subject, device="uwarp_lo", env=()):
        process = start([PROGRAM, subject, device],
                        {"UWARP_PERSONA": persona, "NCCL_DEBUG": "WARN", **dict(env)})
        status = process.wait(SECONDS)
        if status == SKIPPED:
            pytest.skip(process.output)
        assert status == 0 and process.output.endswith("ok\n"), process
        return process.output
    return run


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_devices(drive, persona):
    """Each has a speed and an identity, and takes memory of the host only."""
    output = drive(persona, "properties")
    assert "uwarp_lo speed " in output and " path none " in output, output


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("subject", ["transfer", "flood", "connections", "closing", "killed"])
def test_subject(drive, persona, way, subject):
    drive(persona, subject, env=WAYS[way])


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("subject", ["transfer", "flood"])
def test_setting(drive, persona, setting, subject):
    drive(persona, subject, env=SETTINGS[setting])


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_inline(drive, persona):
    drive(persona, "transfer", env={"NCCL_IB_USE_INLINE": 1})


@pytest.mark.parametrize("subject", ["transfer", "flood", "connections", "closing", "killed"])
def test_two_devices_joined(drive, subject):
    """As NCCL joins two ports of one adapter."""
    drive("roce", subject, device="joined")
