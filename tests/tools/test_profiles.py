# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""UWARP_PROFILE: what each profile reports and enforces, and that programs run with it."""

import os
import re
import shutil
import subprocess

import pytest

import places
from test_ibverbs_utils import devinfo_fields

FOLDER = places.ROOT / "providers" / "uwarp" / "profiles"
PAGE = places.ROOT / "docs" / "profiles.md"
SOURCE = places.ROOT / "providers" / "uwarp" / "base" / "adapter_profile.cc"
NAMES = sorted(path.stem for path in FOLDER.glob("*.profile"))
MTU = ["256", "512", "1024", "2048", "4096"]
ATOMIC = {"none": "ATOMIC_NONE (0)", "hca": "ATOMIC_HCA (1)", "glob": "ATOMIC_GLOB (2)"}
# Limits that ibv_devinfo prints as numbers.
PRINTED = ["max_qp", "max_qp_wr", "max_sge", "max_sge_rd", "max_cq", "max_cqe", "max_mr", "max_pd",
           "max_qp_rd_atom", "max_qp_init_rd_atom", "max_mw", "max_srq", "vendor_part_id"]
IN_HEX = ["vendor_id", "hw_ver", "max_mr_size", "max_msg_sz"]
# Rows of limits_test.cc that need no more than `small` has.
OBJECTS = ["ProtectionDomains", "CompletionQueues", "AddressHandles", "Regions", "QueuePairs",
           "CompletionsInAQueue"]
# Where so many objects are few enough to be made in a moment, in the profile's own persona.
LIMITED = [("small", "iwarp"), ("small", "roce"), ("siw", "iwarp"), ("rxe", "roce")]


def lines_of(name):
    """The keys and values of a profile that comes with uwarp."""
    found = re.findall(r"^(\w[\w.]*) =(.*)$", (FOLDER / f"{name}.profile").read_text(), re.M)
    return {key: value.strip() for key, value in found}


def run(*arguments, env=None):
    clean = {key: value for key, value in os.environ.items()
             if key not in ("UWARP_PROFILE", "UWARP_PERSONA")}
    return subprocess.run([str(places.UWARP_RUN), *map(str, arguments)],
                          env={**clean, **(env or {})}, capture_output=True, text=True,
                          check=False, timeout=2 * places.GUARD_SECONDS)


def test_each_names_its_source():
    assert NAMES == ["irdma-like", "mlx5-like", "rxe", "siw", "small"]
    for name in NAMES:
        text = (FOLDER / f"{name}.profile").read_text()
        assert "# Source: " in text or name == "small", name


@pytest.mark.parametrize("name", NAMES)
def test_devinfo_shows_the_values(name):
    wanted = lines_of(name)
    done = run("--profile", name, "--netdev", "lo", "ibv_devinfo", "-v")
    assert (done.returncode, done.stderr) == (0, "")
    fields = devinfo_fields(done.stdout, "uwarp_lo")
    for key in PRINTED:
        if key in wanted:
            assert int(fields[key]) == int(wanted[key], 0), (key, fields[key])
    for key in IN_HEX:
        if key in wanted:
            assert int(fields[key], 16) == int(wanted[key], 0), (key, fields[key])
    assert fields["atomic_cap"] == ATOMIC[wanted["atomic_cap"]]
    assert fields["fw_ver"] == wanted["fw_ver"]
    assert fields.get("board_id", "") == wanted["board_id"]
    if "max_mtu" in wanted:
        assert fields["max_mtu"].split()[0] == wanted["max_mtu"]
    roce = wanted.get("persona", "iwarp") == "roce"
    assert fields["transport"].startswith("InfiniBand" if roce else "iWARP")
    if "active_width" in wanted:
        assert fields["active_width"].startswith(wanted["active_width"].upper())


@pytest.mark.parametrize("name", NAMES)
def test_files_of_the_device(name):
    wanted = lines_of(name)
    base = "/sys/class/infiniband/uwarp_lo"
    shown = run("--profile", name, "sh", "-c",
                f"cd {base} && cat fw_ver ports/1/rate && ls ports/1/hw_counters").stdout.split("\n")
    assert shown[0] == wanted["fw_ver"]
    speed = wanted.get("active_speed", "edr").upper()
    assert re.fullmatch(rf"[\d.]+ Gb/sec \(\d+X {speed}\)", shown[1]), shown[1]
    named = sorted(key.removeprefix("hw_counter.") for key in wanted if key.startswith("hw_counter."))
    if named:
        assert sorted(shown[2:-1]) == named
    else:
        assert "OutRdmaSends" in shown


def test_a_counter_by_another_name():
    """rdma_sends of rxe is what OutRdmaSends is otherwise."""
    read = "cat /sys/class/infiniband/uwarp_lo/ports/1/hw_counters/rdma_sends"
    assert run("--profile", "rxe", "sh", "-c", read).stdout == "0\n"
    program = ("import sys\n"
               "from pyverbs.device import Context\n"
               "context = Context(name='uwarp_lo')\n"
               "print(open(sys.argv[1]).read().strip())\n")
    done = run("--profile", "rxe", "/usr/bin/python3", "-c", program, read.split()[1])
    assert done.stdout == "0\n", done


@pytest.mark.parametrize("name, persona", LIMITED)
def test_limits_are_enforced(name, persona):
    wanted = lines_of(name)
    rows = [f"Limits.{row}" for row in OBJECTS]
    if int(wanted.get("max_srq", "1")) > 0:
        rows += ["Limits.SharedReceiveQueues", "Limits.SharedWorkRequestsAndTheirElements"]
    env = {"UWARP_TEST_INLINE": wanted["max_inline_data"], "UWARP_PERSONA": persona}
    done = run("--profile", name, places.BUILD / "bin" / "verbs_tests",
               f"--gtest_filter=Profile.*:{':'.join(rows)}", "--gtest_brief=1", env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_persona_of_the_variable_is_stronger():
    transport = lambda env: run("ibv_devinfo", env={"UWARP_PROFILE": "rxe", **env}).stdout
    assert "transport:\t\t\tInfiniBand" in transport({})
    assert "transport:\t\t\tiWARP" in transport({"UWARP_PERSONA": "iwarp"})
    assert "transport:\t\t\tiWARP" in run("--profile", "rxe", "--iwarp", "ibv_devinfo").stdout


@pytest.mark.parametrize("text, complaint", [
    ("max_qp = 262144\n", "1: max_qp = 262144 is more than uwarp's own limit of 65536"),
    ("# one\nmax_sge = none\n", "2: max_sge = none is not a number from 1 to 32"),
    ("max_quue = 3\n", "1: there is no key max_quue"),
])
def test_a_file_that_is_refused(tmp_path, text, complaint):
    path = tmp_path / "own"
    path.write_text(text)
    done = run("--profile", path, "true")
    assert done.returncode == 125
    assert done.stderr == f"uwarp-run: UWARP_PROFILE: {path}:{complaint}\n"
    # Also without uwarp-run, where the program begins.
    env = {**os.environ, "LD_PRELOAD": str(places.BUILD / "lib" / "libuwarp-preload.so"),
           "UWARP_PROFILE": str(path)}
    done = subprocess.run(["ibv_devinfo"], env=env, capture_output=True, text=True, check=False,
                          timeout=places.GUARD_SECONDS)
    assert done.returncode != 0
    assert f"uwarp: UWARP_PROFILE: {path}:{complaint}; no device can be opened" in done.stderr


def test_a_name_that_there_is_not():
    done = run("--profile", "mlx6", "true")
    assert done.returncode == 125
    assert "there is no profile mlx6; those that come with uwarp are " + ", ".join(NAMES[:-1]) + \
        " and small" in done.stderr


def test_a_file_of_ones_own(tmp_path):
    (tmp_path / "own").write_text("max_qp = 12\nvendor_id = 0x1234\n")
    shell = f"cd {tmp_path} && exec {places.UWARP_RUN} --profile ./own sh -c 'cd /; ibv_devinfo -v'"
    shown = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True,
                           timeout=places.GUARD_SECONDS).stdout
    fields = devinfo_fields(shown, "uwarp_lo")
    assert (fields["max_qp"], fields["vendor_id"]) == ("12", "0x1234")


# Beside size, number and device: perftest asks for more than some adapters have.
PERFTEST = {"ib_send_bw": ["-r", "8", "-t", "8"], "ib_write_bw": ["-t", "8"],
            "ib_read_lat": ["-o", "1"], "ib_write_lat": ["-I", "64"]}


@pytest.mark.parametrize("tool", PERFTEST)
@pytest.mark.parametrize("name", NAMES)
def test_perftest(pair, loopback, name, tool):
    small = name == "small"
    more = [option if option != "64" or not small else "0" for option in PERFTEST[tool]]
    more += ["-m", "256", "-s", "2048"] if small else ["-s", "65536"]
    command = [tool, "-d", "{device}", "-p", "{port}", "-F", "-n", "100", *more]
    pair(loopback, command, [*command, "{address}"], env={"UWARP_PROFILE": name})


@pytest.mark.parametrize("name", NAMES)
def test_rping(pair, loopback, name):
    pair(loopback, ["rping", "-s", "-a", "{address}", "-p", "{port}", "-C", "10"],
         ["rping", "-c", "-a", "{address}", "-p", "{port}", "-C", "10", "-V"],
         env={"UWARP_PROFILE": name})


def test_rping_with_the_least_mtu_in_roce(pair, loopback):
    """What rdma_cm says of the path is no more than the profile has."""
    pair(loopback, ["rping", "-s", "-a", "{address}", "-p", "{port}", "-C", "10"],
         ["rping", "-c", "-a", "{address}", "-p", "{port}", "-C", "10", "-V"],
         env={"UWARP_PROFILE": "small", "UWARP_PERSONA": "roce"})


@pytest.mark.skipif(not shutil.which("cc"), reason="no compiler")
def test_no_vendor_takes_the_device(tmp_path):
    """mlx5dv says no, whatever the vendor's number is."""
    source = tmp_path / "ask.c"
    source.write_text("#include <infiniband/mlx5dv.h>\n#include <stdio.h>\n"
                      "int main(void) {\n  int count = 0, taken = 0;\n"
                      "  struct ibv_device** all = ibv_get_device_list(&count);\n"
                      "  for (int i = 0; i < count; ++i) taken += mlx5dv_is_supported(all[i]);\n"
                      "  printf(\"%d %d\\n\", count > 0, taken);\n  return 0;\n}\n")
    program = tmp_path / "ask"
    built = subprocess.run(["cc", str(source), "-o", str(program), "-lmlx5", "-libverbs"],
                           capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.skip("no libmlx5")
    for name in ("mlx5-like", "rxe"):
        assert run("--profile", name, program).stdout == "1 0\n"


def test_the_page_names_every_key():
    keys = re.findall(r'^    \{"(\w+)", "', SOURCE.read_text(), re.M)
    assert "max_qp" in keys and "active_speed" in keys
    text = PAGE.read_text()
    for key in [*keys, "hw_counter.", *NAMES]:
        assert f"`{key}" in text, key
