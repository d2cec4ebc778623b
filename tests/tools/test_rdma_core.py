# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Which libraries the stock tools use in a run of ./test.sh --rdma-core, and how libibverbs comes by the
plugin: UWARP_RDMA_CORE names the release's folder, UWARP_RDMA_CORE_WAY is beside or driver."""

import os
import pathlib
import re

import pytest

import places

RELEASE = pathlib.Path(os.environ.get("UWARP_RDMA_CORE", "/nowhere"))
WAY = os.environ.get("UWARP_RDMA_CORE_WAY")
DRIVER_FILE = RELEASE / "etc" / "libibverbs.d" / "uwarp.driver"

pytestmark = pytest.mark.skipif(WAY is None, reason="for ./test.sh --rdma-core")


def mapped(process, name):
    """Folders of the shared objects of this name in the process's memory."""
    maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
    return {pathlib.Path(path).parent for path in re.findall(rf" (/\S*/{name}\S*)$", maps, re.M)}


def test_libraries_and_plugin_are_those_of_the_release(start, loopback, port):
    server = start(["rping", "-s", "-a", "127.0.0.1", "-p", port], loopback.server)
    places.wait_listening(server, port)
    assert mapped(server, "libibverbs.so") == mapped(server, "librdmacm.so") == {RELEASE / "lib"}
    plugin = RELEASE if WAY == "driver" else places.BUILD
    assert mapped(server, "libuwarp-rdmav") == {plugin / "lib"}


@pytest.mark.skipif(WAY != "driver", reason="the plugin lies beside the preloaded library")
def test_without_the_driver_file_the_environment_names_the_plugin(start):
    DRIVER_FILE.unlink()
    try:
        assert "uwarp_lo" not in start(["ibv_devices"]).succeed()
        for name in ("uwarp", RELEASE / "lib" / "libuwarp"):
            assert "uwarp_lo" in start(["ibv_devices"], env={"IBV_DRIVERS": name}).succeed()
    finally:
        DRIVER_FILE.write_text("driver uwarp\n")


@pytest.mark.parametrize("persona", ["iwarp", "roce"])
def test_cmtime(start, link, port, persona):
    """Since rdma-core 56: connections first with queue pairs, and then without. iWARP has the latter
    no more than siw has. Its two ends coordinate by TCP, in some releases on the port whose number is
    that of rdma_cm too."""
    usage = start(["cmtime", "-h"], uwarp=False)
    usage.wait()
    if "base_qpn" not in usage.output:
        pytest.skip("an older cmtime: test_rdmacm_utils.py")
    common = ["cmtime", "-p", port, "-c", 20]
    server, client = ["-b", link.server.address], ["-s", link.server.address]
    env = {"UWARP_PERSONA": persona, "UWARP_LOG": "1"}
    if "controller" in usage.output:
        control = ["-C", link.server.address]
        server, client = [*server, *control, "-L"], ["-b", link.client.address, *control]
    else:
        env["UWARP_PORT_OFFSET"] = 10000
    passive = start(common + server, link.server, env=env)
    places.wait_listening(passive, port)
    active = start(common + client, link.client, env=env)
    status = active.wait()
    assert "Connect (20) QPs test" in active.output, active
    assert "Connect (20) test - no QPs" in active.output, active
    if persona == "roce":
        assert status == 0, active
        passive.succeed()
    else:
        assert status == 1 and "rdma_connect: Invalid argument" in active.output, active
        assert "there is no queue pair of number" in active.output, active
