# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The options of uwarp-run, and the line that names one of them to the user of a program that the
iwarp persona refuses."""

import os
import subprocess

import pytest

import places

ADVICE = "uwarp-run --roce (UWARP_PERSONA=roce) has it; set it on both sides"
OF_OPTIONS = ("UWARP_PERSONA", "UWARP_NETDEVS", "UWARP_STAT", "UWARP_LOG", "UWARP_PROFILE")
SHOWN = 'echo "$UWARP_PERSONA/$UWARP_NETDEVS/$UWARP_STAT"'


def run(*arguments, env=None):
    """(status, stdout, stderr) of uwarp-run with these arguments."""
    clean = {key: value for key, value in os.environ.items() if key not in OF_OPTIONS}
    done = subprocess.run([str(places.UWARP_RUN), *arguments], env={**clean, **(env or {})},
                          capture_output=True, text=True, check=False,
                          timeout=places.GUARD_SECONDS)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("options, shown", [
    ([], "//"),
    (["--roce"], "roce//"),
    (["--iwarp"], "iwarp//"),
    (["--netdev", "lo"], "/lo/"),
    (["--netdev=lo"], "/lo/"),
    (["--netdev", "lo", "--netdev", "eth0,eth1"], "/lo,eth0,eth1/"),
    (["--stat", "--roce"], "roce//end"),
    (["--roce", "--"], "roce//"),
])
def test_options_are_variables(options, shown):
    assert run(*options, "sh", "-c", SHOWN) == (0, shown + "\n", "")


@pytest.mark.parametrize("env, shown", [
    ({}, "LOC/2"),
    ({"NCCL_NET_MERGE_LEVEL": "PIX", "NCCL_GIN_TYPE": "3"}, "PIX/3"),
])
def test_nccl_finds_devices_without_a_place_on_the_bus(env, shown):
    command = 'echo "$NCCL_NET_MERGE_LEVEL/$NCCL_GIN_TYPE"'
    assert run("sh", "-c", command, env=env) == (0, shown + "\n", "")


def test_an_option_beats_the_variable():
    env = {"UWARP_PERSONA": "iwarp", "UWARP_NETDEVS": "eth9", "UWARP_STAT": "0"}
    options = ["--roce", "--netdev", "lo", "--stat"]
    assert run(*options, "sh", "-c", SHOWN, env=env)[1] == "roce/lo/end\n"
    assert run("sh", "-c", SHOWN, env=env)[1] == "iwarp/eth9/0\n"


def test_words_of_the_command_are_its_own():
    assert run("echo", "--roce", "--stat")[1] == "--roce --stat\n"


@pytest.mark.parametrize("arguments, complaint", [
    ([], "usage: "),
    (["--roce"], "usage: "),
    (["--rocket", "true"], "uwarp-run: there is no option --rocket"),
    (["--roce=1", "true"], "uwarp-run: there is no option --roce=1"),
    (["-x", "true"], "uwarp-run: there is no option -x"),
    (["--roce", "--iwarp", "true"], "uwarp-run: --roce or --iwarp, not both"),
    (["--netdev"], "uwarp-run: --netdev needs a name"),
    (["--netdev=", "true"], "uwarp-run: --netdev needs a name"),
    (["--netdev", "--roce", "true"], "uwarp-run: --netdev needs a name"),
])
def test_wrong_usage(arguments, complaint):
    status, stdout, stderr = run(*arguments)
    assert (status, stdout) == (125, "")
    assert stderr.startswith(complaint), stderr


def test_the_devices_are_those_asked_for():
    assert "uwarp_lo" in run("--netdev", "lo", "ibv_devices")[1]
    assert "uwarp" not in run("--netdev", "no-such-device", "ibv_devices")[1]


def test_persona_of_the_option():
    assert "transport:\t\t\tInfiniBand" in run("--roce", "--netdev", "lo", "ibv_devinfo")[1]
    assert "transport:\t\t\tiWARP" in run("--iwarp", "--netdev", "lo", "ibv_devinfo")[1]


def test_totals_at_the_end(pair, loopback, port):
    """Each process prints what it has moved; ibv_rc_pingpong sends 10 messages each way."""
    env = {"UWARP_STAT": "end"}
    command = ["ibv_rc_pingpong", "-g", "0", "-n", 10, "-s", 1000, "-p", port, "-d", "{device}"]
    for output in pair(loopback, command, [*command, "127.0.0.1"], env=env):
        line = [line for line in output.splitlines() if line.startswith("uwarp: ")]
        assert len(line) == 1, output
        assert "ibv_rc_pingpong[" in line[0] and "] uwarp_lo: sent " in line[0], line
        assert "; 1 connection, 0 failures, " in line[0], line


def test_no_totals_without_a_device():
    assert run("--stat", "true") == (0, "", "")
    assert "uwarp: " not in run("ibv_devinfo")[2]


def test_advice_when_iwarp_lacks_a_type():
    """Once, however often the program asks, and not with UWARP_LOG=0."""
    refused = ["--netdev", "lo", "ibv_ud_pingpong", "-g", "0"]
    stderr = run(*refused)[2]
    assert stderr.count(ADVICE) == 1, stderr
    assert "uwarp: uwarp_lo: no queue pair of type UD in the iwarp persona. " in stderr
    assert ADVICE not in run(*refused, env={"UWARP_LOG": "0"})[2]
    # The log has the line anyway.
    assert run(*refused, env={"UWARP_LOG": "1"})[2].count(ADVICE) == 1


def test_advice_once_in_a_process():
    program = ("from pyverbs.device import Context\n"
               "from pyverbs.pd import PD\n"
               "from pyverbs.cq import CQ\n"
               "from pyverbs.qp import QP, QPCap, QPInitAttr\n"
               "from pyverbs.pyverbs_error import PyverbsRDMAError\n"
               "import pyverbs.enums as e\n"
               "context = Context(name='uwarp_lo')\n"
               "pd, cq = PD(context), CQ(context, 1)\n"
               "for kind in (e.IBV_QPT_UD, e.IBV_QPT_UC, e.IBV_QPT_UD):\n"
               "    try:\n"
               "        QP(pd, QPInitAttr(qp_type=kind, scq=cq, rcq=cq, cap=QPCap()))\n"
               "    except PyverbsRDMAError:\n"
               "        pass\n")
    stderr = run("/usr/bin/python3", "-c", program)[2]
    assert stderr.count(ADVICE) == 1, stderr


def test_advice_for_datagrams_of_rdma_cm():
    stderr = run("udaddy")[2]
    assert stderr.count("rdma_cm: no datagrams in the iwarp persona. " + ADVICE) == 1, stderr


@pytest.mark.parametrize("command", [
    ["ibv_devinfo", "-v"], ["ibv_devices"], ["fi_info", "-p", "verbs"], ["ucx_info", "-d"]])
def test_no_advice_for_programs_that_only_look(command):
    """What such a program wants to do with the device cannot be known."""
    if not places.shutil.which(command[0]):
        pytest.skip(f"no {command[0]}")
    assert ADVICE not in "".join(map(str, run(*command)[1:]))
