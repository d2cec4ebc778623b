# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""What makes a fault harder to use: the marks in the ELF files that are installed, and the maps of a
process that has them."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

import places

LIBRARIES = ["lib/libuwarp.so.0", "lib/libuwarp-preload.so", "lib/libuwarp-rdmav34.so",
             "lib/libuwarp-tls.so", "lib/librpcrdma.so.0"]
PROGRAMS = ["bin/uwarp-run", "bin/uwarp-doctor", "bin/uwarp-stat", "bin/nfs-rdma"]
ALL = LIBRARIES + PROGRAMS


def readelf(option, name):
    if not shutil.which("readelf"):
        pytest.skip("readelf (binutils) is missing")
    return subprocess.run(["readelf", "--wide", option, places.BUILD / name], capture_output=True,
                          text=True, check=True).stdout


def segments(name):
    """(type, flags) of each program header."""
    return re.findall(r"^  (\w+) +0x\w+ 0x\w+ 0x\w+ 0x\w+ 0x\w+ ([R W E]{3}) ",
                      readelf("--program-headers", name), re.M)


def imports(name):
    return set(re.findall(r"UND (\w+)", readelf("--dyn-syms", name)))


def build_type():
    found = re.search(r"CMAKE_BUILD_TYPE:\w+=(\w*)", (places.BUILD / "CMakeCache.txt").read_text())
    return found[1] if found else ""


@pytest.mark.parametrize("name", ALL)
def test_memory_is_writable_or_executable(name):
    found = segments(name)
    assert {kind for kind, _ in found} >= {"LOAD", "GNU_STACK", "GNU_RELRO", "DYNAMIC"}, found
    assert not [flags for _, flags in found if "W" in flags and "E" in flags], found
    assert [flags for kind, flags in found if kind == "GNU_STACK"] == ["RW "]
    assert "TEXTREL" not in readelf("--dynamic", name)


@pytest.mark.parametrize("name", ALL)
def test_all_addresses_are_bound_at_start(name):
    """With RELRO that makes the tables of addresses read-only."""
    assert re.search(r"BIND_NOW|Flags:.*\bNOW\b", readelf("--dynamic", name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_position_independent(name):
    assert re.search(r"Type: +DYN", readelf("--file-header", name))


@pytest.mark.parametrize("name", ALL)
def test_libraries_are_looked_for_beside_ours_only(name):
    for path in re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", readelf("--dynamic", name)):
        assert all(part.startswith("$ORIGIN") for part in path.split(":") if part), path


@pytest.mark.parametrize("name", ALL)
def test_stacks_are_guarded(name):
    if name == "lib/libuwarp-rdmav34.so" and "__stack_chk_fail" not in imports(name):
        # A thin layer: perhaps none of its functions has an array.
        pytest.skip("no function with an array")
    assert "__stack_chk_fail" in imports(name)


@pytest.mark.parametrize("name", ["lib/libuwarp.so.0", "bin/uwarp-doctor", "bin/nfs-rdma"])
def test_calls_of_libc_are_checked(name):
    if build_type() in ("Debug", ""):
        pytest.skip("checked calls need optimisation")
    assert [one for one in imports(name) if re.fullmatch(r"__\w+_chk", one)], imports(name)


def test_no_process_has_writable_code(start, port):
    server = start(["rping", "-s", "-P", "-a", "127.0.0.1", "-p", port])
    places.wait_listening(server, port)
    start(["rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "2"]).succeed()
    maps = pathlib.Path(f"/proc/{server.pid}/maps").read_text()
    assert "libuwarp.so" in maps
    assert not re.findall(r"^\S+ .wx. .*$|^\S+ rwx. .*$", maps, re.M)


def test_a_setuid_program_is_not_changed(tmp_path):
    """The dynamic linker drops the preload, and nothing else listens to the user's variables."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a setuid program")
    program, log = tmp_path / "ibv_devices", tmp_path / "log"
    shutil.copy(shutil.which("ibv_devices"), program)
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    run = subprocess.run([places.UWARP_RUN, program], capture_output=True, text=True, check=False,
                         env=os.environ | {"UWARP_LOG": str(log)}, timeout=places.GUARD_SECONDS)
    plain = subprocess.run([places.UWARP_RUN, "ibv_devices"], capture_output=True, text=True,
                           check=False, timeout=places.GUARD_SECONDS)
    assert "uwarp_lo" in plain.stdout
    if "uwarp_lo" in run.stdout:
        pytest.skip("setuid has no effect on this mount")
    assert not log.exists()


def test_nothing_uninitialised_goes_onto_the_wire(start, port):
    """Valgrind looks at all bytes that the kernel is given to send."""
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is missing")
    watched = ["valgrind", "--child-silent-after-fork=yes", "rping", "-a", "127.0.0.1", "-p", port,
               "-C", "3", "-S", "3000", "-V"]
    server = start([*watched, "-s"])
    places.wait_listening(server, port)
    client = start([*watched, "-c"])
    for end in (client, server):
        text = end.succeed(places.GUARD_SECONDS * 2)
        assert "ERROR SUMMARY" in text, end
        assert not re.search(r"Syscall param send.* uninitialised", text), end
