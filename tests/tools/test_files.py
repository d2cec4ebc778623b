# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Files below /sys/class and /dev/infiniband, as docs/files.md lists them."""

import re
import shutil

import pytest

import places

GUID = r"([0-9a-f]{4}:){3}[0-9a-f]{4}"
GID = r"([0-9a-f]{4}:){7}[0-9a-f]{4}"
LOOPBACK_GIDS = 2  # 127.0.0.1 and ::1; the rest of the table is empty
PERSONAS = ["iwarp", "roce"]

NODE = "character special file"

# Each file of docs/files.md, for the loopback device: what it says, and in the roce persona where
# that is something else.
FILES = {
    "node_type": ("4: RNIC", "1: CA"),
    "node_guid": GUID,
    "sys_image_guid": GUID,
    "node_desc": "uwarp_lo",
    "fw_ver": r"\d+\.\d+\.\d+",
    "hw_rev": "1",
    "hca_type": "uwarp",
    "board_id": "uwarp",
    "uwarp": "lo",
    "device/net/IF/ifindex": "1",
    "device/numa_node": "-1",
    "ports/1/link_layer": "Ethernet",
    "ports/1/state": "4: ACTIVE",
    "ports/1/phys_state": "5: LinkUp",
    "ports/1/rate": r"100 Gb/sec \(4X EDR\)",
    "ports/1/lid": "0x0",
    "ports/1/sm_lid": "0x0",
    "ports/1/sm_sl": "0",
    "ports/1/lid_mask_count": "0",
    "ports/1/cap_mask": "0x00010000",
    "ports/1/pkeys/0": "0xffff",
    "ports/1/gids/N": GID,
    "ports/1/gid_attrs/types/N": "RoCE v2",
    "ports/1/gid_attrs/ndevs/N": "lo",
    "ports/1/counters/NAME": r"\d+",
    "ports/1/hw_counters/NAME": r"\d+",
    "/sys/class/infiniband_verbs/abi_version": "6",
    "/sys/class/infiniband_verbs/uverbsM/ibdev": "uwarp_lo",
    "/sys/class/infiniband_verbs/uverbsM/dev": "1:7",
    "/sys/class/infiniband_verbs/uverbsM/abi_version": "1",
    "/sys/class/misc/rdma_cm/abi_version": "4",
    "/dev/infiniband/uverbsM": NODE,
    "/dev/infiniband/rdma_cm": NODE,
}

ABSENT = ["/sys/class/infiniband_mad/umad192", "device/vendor", "device/device", "device/modalias",
          "device/local_cpus", "device/resource", "tc/1/traffic_class"]


def absolute(name):
    """The path of a name of the table, N as "*"."""
    path = name if name.startswith("/") else f"/sys/class/infiniband/uwarp_lo/{name}"
    return re.sub("/(N|NAME)$", "/*", path.replace("/IF/", "/lo/").replace("uverbsM", "uverbs192"))


@pytest.fixture(scope="module", params=PERSONAS)
def persona(request):
    return request.param


@pytest.fixture(scope="module")
def shell(pod, persona):
    """Runs a line of the shell where loopback is the only device: its output."""
    place = places.Place("pod", pod.enter(), "127.0.0.1", "::1", "uwarp_lo")

    def run(line):
        process = places.Process(["sh", "-c", line], place, env={"UWARP_PERSONA": persona})
        try:
            return process.succeed()
        finally:
            process.reap()

    return run


@pytest.fixture(scope="module")
def said(shell):
    """For each name of the table: which files there are, and their lines."""
    parts = [f"echo '== {name}'; ls {absolute(name)}; echo --; " +
             (f"stat -c %F {absolute(name)}" if FILES[name] is NODE else f"cat {absolute(name)}")
             for name in FILES]
    sections = shell("; ".join(parts)).split("== ")[1:]
    heads = [section.split("\n", 1) for section in sections]
    return {name: [part.splitlines() for part in rest.split("--\n")] for name, rest in heads}


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_there(said, persona, name):
    files, lines = said[name]
    says = FILES[name]
    if isinstance(says, tuple):
        says = says[PERSONAS.index(persona)]
    assert len(files) == len(lines) > 0
    for line in lines:
        assert re.fullmatch(says, line), (name, line)


def test_each_gid_has_its_attributes(shell):
    port = "/sys/class/infiniband/uwarp_lo/ports/1"
    gids = shell(f"cat {port}/gids/*").splitlines()
    assert sum(set(gid) != set("0:") for gid in gids) == LOOPBACK_GIDS
    numbers = [str(number) for number in range(LOOPBACK_GIDS)]
    assert shell(f"ls {port}/gid_attrs/ndevs").split() == numbers
    assert set(numbers) < set(shell(f"ls {port}/gid_attrs/types").split())


def test_what_is_not_there(shell):
    present = " || ".join(f"test -e {absolute(name)}" for name in ABSENT)
    shell(f"! {{ {present}; }}")


def test_there_are_no_others(shell):
    found = set(shell("find /sys/class/infiniband/uwarp_lo /sys/class/infiniband_verbs/uverbs192 "
                      "/sys/class/misc/rdma_cm -type f").split())
    patterns = [re.escape(absolute(name)).replace(r"\*", "[^/]+") for name in FILES]
    for path in found:
        assert any(re.fullmatch(pattern, path) for pattern in patterns), path


def first_cells(heading):
    """The names in the first column of the page's tables below a line."""
    text = (places.ROOT / "docs" / "files.md").read_text()
    section = re.search(re.escape(heading) + r"\n\n(\|.*?)\n\n", text, re.S).group(1)
    return [name for row in section.splitlines()[2:]
            for name in re.findall("`([^`]+)`", row.split("|")[1])]


def test_the_page_lists_them():
    assert first_cells("device.") == list(FILES)
    listed = first_cells("over the same network device:")
    assert [re.sub("/umad192$", "", name) for name in ABSENT] == listed


@pytest.mark.parametrize("command, says", [
    ("ibstatus", r"state:\s+4: ACTIVE"),
    ("ibstat", r"State: Active"),
    ("ibstat -l", "^uwarp_lo$"),
    ("ibv_devinfo -v", "GID.*::ffff:127.0.0.1"),
])
def test_tools_that_read_them(shell, persona, command, says):
    if shutil.which(command.split()[0]) is None:
        pytest.skip("infiniband-diags is not installed")
    if command.split()[0] == "ibstat" and persona == "iwarp":
        pytest.skip("ibstat shows InfiniBand and RoCE only")
    assert re.search(says, shell(command), re.M)
