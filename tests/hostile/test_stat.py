# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""uwarp-stat of root while another user has pages of counters that uwarp has not made: it ends, needs
little memory, prints little, and shows the honest processes as ever."""

import json
import os
import subprocess
import tempfile

import pytest

import places

STAT = places.BUILD / "bin" / "uwarp-stat"
# A user's share of slots as JSON, four full pages, is 70 MB; and what is needed to make it.
MOST_OUTPUT = 160 << 20
MOST_MEMORY_KIB = 512 << 10
NAMED = 8  # pages of a user that cannot be read, before they are only counted


def look(*arguments):
    """(what it printed, its peak of memory in KiB)"""
    with tempfile.TemporaryFile() as output, subprocess.Popen(
            [STAT, "--all-users", *arguments], stdout=output, stderr=subprocess.STDOUT) as child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        size = output.seek(0, os.SEEK_END)
        assert child.returncode == 0, os.pread(output.fileno(), 4096, 0)
        assert size < MOST_OUTPUT, size
        return os.pread(output.fileno(), MOST_OUTPUT, 0), used.ru_maxrss


def seen():
    text, memory = look("--json")
    assert memory < MOST_MEMORY_KIB, memory
    return json.loads(text)


def check_honest(found, bystanders):
    shown = {each["pid"]: each for each in found["processes"]}
    for each in bystanders.both:
        assert shown[each.pid]["program"] == "victim"
        assert shown[each.pid]["queue_pairs"], shown[each.pid]


@pytest.mark.parametrize("attack, why", [
    ("overlap", "larger than a page of counters can be"),
    ("large", "larger than a page of counters can be"),
    ("unsealed", "not sealed"),
    ("lease", "not memory of the kind that uwarp makes"),
    ("other", "not memory of the kind that uwarp makes"),
])
def test_refused(bystanders, attacker, attack, why):
    """Each page has its line."""
    strangers = attacker("pages", attack, 2)
    places.wait_until(lambda: strangers.output.count("ready") == 2 or not strangers.running(),
                      lambda: strangers)
    if "refused" in strangers.output:
        pytest.skip(f"the user nobody may make no namespaces: {strangers.output}")
    assert strangers.running(), strangers
    # Those of an attack before may take a moment to go.
    places.wait_until(lambda: len(seen()["unreadable"]) <= 2, lambda: strangers)
    found = seen()
    check_honest(found, bystanders)
    assert [each["why"] for each in found["unreadable"]] == [why] * 2, found["unreadable"]
    assert not found["left_out"]


@pytest.mark.parametrize("attack", ["full", "changing"])
def test_more_than_the_share_of_a_user(bystanders, attacker, attack):
    """As large as pages can be, and many of them: some are shown, the others counted."""
    count = 12
    strangers = attacker("pages", attack, count)
    places.wait_until(lambda: strangers.output.count("ready") == count or not strangers.running(),
                      lambda: strangers)
    found = seen()
    check_honest(found, bystanders)
    shown = [each for each in found["processes"] if each["program"] == attack]
    left, = found["left_out"]
    assert len(shown) == 3 and len(found["unreadable"]) == NAMED
    assert left["uid"] == shown[0]["uid"] != 0
    assert len(shown) + NAMED + left["processes"] == count
    tables, memory = look("--once")
    assert memory < MOST_MEMORY_KIB
    assert f"{left['processes']} processes of user {left['uid']} are left out" in tables.decode()


def test_names_are_no_commands_to_the_terminal(bystanders, attacker):
    strangers = attacker("pages", "escapes")
    strangers.wait_ready()
    for arguments in (("--once",), ("--json",), ("--count", "2", "--interval", "0.1")):
        text, _ = look(*arguments)
        assert b"owned" in text
        assert all(0x20 <= byte < 0x7f or byte == 0x0a for byte in text)
    check_honest(seen(), bystanders)


def test_many_open_files(bystanders, attacker):
    """Processes of a stranger with more files than are looked at hide no other process."""
    strangers = attacker("pages", "files", 4)
    places.wait_until(lambda: strangers.output.count("ready") == 4 or not strangers.running(),
                      lambda: strangers)
    found = seen()
    check_honest(found, bystanders)
    behind = [each for each in found["processes"] if each["program"] == "behind"]
    hidden = sum(each["processes"] for each in found["left_out"])
    assert len(behind) + hidden == 4
