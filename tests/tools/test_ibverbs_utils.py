# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""ibv_devices, ibv_devinfo and the pingpongs of ibverbs-utils."""

import os
import re
import shutil

import pytest

import places

UNPRIVILEGED = 65534


def device_names(output):
    """Names in the table of ibv_devices, in order."""
    return [line.split()[0] for line in output.splitlines()[2:] if line.strip()]


def devinfo_fields(output, device):
    """The fields of one device of ibv_devinfo -v as a dictionary; repeated names keep the first."""
    section = re.split(r"^hca_id:\s*", output, flags=re.M)
    text = next(part for part in section if part.split("\n", 1)[0].strip() == device)
    fields = {}
    for line in text.splitlines()[1:]:
        name, colon, value = line.strip().partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def check_devinfo(output, device, address):
    fields = devinfo_fields(output, device)
    assert fields["transport"].startswith("iWARP"), fields
    assert fields["state"].startswith("PORT_ACTIVE"), fields
    assert fields["link_layer"] == "Ethernet", fields
    assert int(fields["max_qp_wr"]) >= 16384
    assert int(fields["max_sge"]) >= 32
    assert int(fields["max_qp_rd_atom"]) == 128
    assert fields["GID[  0]"].startswith(f"::ffff:{address}"), fields


def lone_namespace(start):
    """Enters a namespace in which only the loopback device is up."""
    if not places.can_unshare():
        pytest.skip("no right to make network namespaces")
    unshare = "unshare -n" if os.geteuid() == 0 else "unshare -Urn"
    return lambda command: start(
        unshare.split() + ["sh", "-c", f"ip link set lo up && exec {places.UWARP_RUN} {command}"],
        uwarp=False)


def test_devices_lists_ours_loopback_last(start):
    names = device_names(start(["ibv_devices"]).succeed())
    assert "uwarp_lo" in names
    ours = [name for name in names if name.startswith("uwarp_")]
    assert ours[-1] == "uwarp_lo", "loopback comes last"


def test_devices_in_namespace(start, veth):
    names = device_names(start(["ibv_devices"], veth.server).succeed())
    assert names == ["uwarp_veth0", "uwarp_lo"]


def test_devinfo_verbose(start, link):
    output = start(["ibv_devinfo", "-v"], link.server).succeed()
    check_devinfo(output, link.server.device, link.server.address)
    assert "rror" not in output and "ailed" not in output, output


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
def test_devinfo_as_nobody(start):
    drop = ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups",
            "--inh-caps=-all", "--bounding-set=-all"]
    probe = start(drop + ["test", "-x", str(places.UWARP_RUN)], uwarp=False)
    if probe.wait() != 0:
        pytest.skip("the build folder is not readable for other users")
    for command in (["ibv_devices"], ["ibv_devinfo", "-v"]):
        output = start(drop + [str(places.UWARP_RUN), *command], uwarp=False).succeed()
        assert "uwarp_lo" in output
    check_devinfo(output, "uwarp_lo", "127.0.0.1")


def test_devinfo_with_only_loopback(start):
    alone = lone_namespace(start)
    assert device_names(alone("ibv_devices").succeed()) == ["uwarp_lo"]
    check_devinfo(alone("ibv_devinfo -v").succeed(), "uwarp_lo", "127.0.0.1")


def test_no_device_at_all(start):
    """Without a usable netdev the list is empty and the exit codes are those of no hardware."""
    if not places.can_unshare():
        pytest.skip("no right to make network namespaces")
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    bare = start(unshare + ["ibv_devinfo"], uwarp=False)
    expected = bare.wait()
    ours = start(unshare + [str(places.UWARP_RUN), "ibv_devinfo"], uwarp=False)
    assert ours.wait() == expected
    assert "No IB devices found" in ours.output
    listing = start(unshare + [str(places.UWARP_RUN), "ibv_devices"], uwarp=False)
    assert device_names(listing.succeed()) == []


def test_bad_setting_gives_one_line(start):
    process = start(["ibv_devices"], env={"UWARP_CRC": "perhaps"})
    output = process.succeed()
    lines = [line for line in output.splitlines() if "UWARP_CRC" in line]
    assert len(lines) == 1 and "perhaps" in lines[0], output
    assert "uwarp_lo" in output


def pingpong(pair, link, tool, size, iterations, *options, seconds=None):
    command = [tool, "-d", "{device}", "-g", "0", "-p", "{port}", "-s", size, "-n", iterations,
               *options]
    for output in pair(link, command, command + ["{address}"], seconds=seconds):
        bytes_moved = re.search(r"^(\d+) bytes in ([\d.]+) seconds = ([\d.]+) Mbit/sec", output, re.M)
        assert bytes_moved, output
        assert int(bytes_moved[1]) == size * iterations * 2
        assert re.search(rf"^{iterations} iters in [\d.]+ seconds = [\d.]+ usec/iter", output, re.M)
        assert "invalid data" not in output, output


@pytest.mark.parametrize("events", [[], ["-e"]], ids=["poll", "events"])
@pytest.mark.parametrize("size", [1, 64, 4096, 65536])
def test_rc_pingpong(pair, link, size, events):
    pingpong(pair, link, "ibv_rc_pingpong", size, 10000, "-c", *events)


@pytest.mark.parametrize("events", [[], ["-e"]], ids=["poll", "events"])
def test_rc_pingpong_one_mebibyte(pair, link, events):
    pingpong(pair, link, "ibv_rc_pingpong", 1 << 20, 10000 if not events else 2000, "-c", *events,
             seconds=2 * places.GUARD_SECONDS)


def test_rc_pingpong_new_post_send(pair, link):
    """-N: the ibv_wr_* interface."""
    pingpong(pair, link, "ibv_rc_pingpong", 4096, 1000, "-c", "-N")


def test_rc_pingpong_time_stamps(pair, link):
    """-t: an ibv_cq_ex that gives each completion its time."""
    pingpong(pair, link, "ibv_rc_pingpong", 4096, 1000, "-c", "-t")


def test_srq_pingpong(pair, link):
    command = ["ibv_srq_pingpong", "-d", "{device}", "-g", "0", "-p", "{port}", "-n", "1000"]
    for output in pair(link, command, command + ["{address}"]):
        assert re.search(r"^\d+ bytes in [\d.]+ seconds", output, re.M), output


@pytest.mark.parametrize("tool", ["ibv_uc_pingpong", "ibv_ud_pingpong"])
def test_unsupported_pingpong_fails_cleanly(start, port, tool):
    process = start([tool, "-d", "uwarp_lo", "-g", "0", "-p", port])
    status = process.wait()
    assert 0 < status < 128, process
    assert "Couldn't create QP" in process.output, process
