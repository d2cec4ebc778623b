# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Google's rdma-unit-test: unit tests, traffic and random walks, each test in a process of its own, in
both personas. What may fail stands in rdma-unit-test/exceptions.txt."""

import fnmatch
import pathlib
import subprocess

import pytest
from conftest import BUILT

PROGRAM_FOLDER = BUILT / "rdma-unit-test" / "bin"
PROGRAMS = ["unit", "traffic", "random_walk"]
EXCEPTIONS = pathlib.Path(__file__).parent / "exceptions.txt"
SECONDS = 180  # for one test; all but a few end within three


def names(program):
    """Names of the program's tests, as --gtest_filter takes them."""
    listed = subprocess.run([PROGRAM_FOLDER / program, "--gtest_list_tests"], check=True, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    suite = None
    for line in listed.splitlines():
        name = line.split("#")[0].strip()
        if not line.startswith(" "):
            suite = name if name.endswith(".") else None
        elif suite:
            yield suite + name


def exceptions():
    """(persona or `both`, pattern of names, `fails` or `may` or `skip`, reason) of each line."""
    for line in EXCEPTIONS.read_text().splitlines():
        if line and not line.startswith("#"):
            yield line.split(None, 3)


def marks(persona, name):
    for for_persona, pattern, what, reason in exceptions():
        if for_persona in (persona, "both") and fnmatch.fnmatch(name, pattern):
            if what == "skip":
                return [pytest.mark.skip(reason=reason)]
            return [pytest.mark.xfail(reason=reason, strict=what == "fails")]
    return []


def pytest_generate_tests(metafunc):
    metafunc.parametrize("persona, program, name", [
        pytest.param(persona, program, name, id=f"{persona}-{program}-{name}",
                     marks=marks(persona, name))
        for program in PROGRAMS if (PROGRAM_FOLDER / program).exists()
        for name in names(program) for persona in ("roce", "iwarp")])


def test(start, persona, program, name):
    # On lo: the suite asks for a path MTU of 4096, which the iwarp persona has where the netdev has.
    process = start([PROGRAM_FOLDER / program, f"--gtest_filter={name}", "--completion_wait_multiplier=10",
                     "--device_name=uwarp_lo"], {"UWARP_PERSONA": persona})
    status = process.wait(SECONDS)
    if status == 0 and "[  SKIPPED ]" in process.output:
        pytest.skip("by the suite")
    assert status == 0, process
