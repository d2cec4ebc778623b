# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The table of docs/troubleshooting.md: each of the ten commonest mistakes is made, and what the table
says of it is printed, by uwarp or uwarp-run and by uwarp-doctor."""

import ctypes
import errno
import os
import pathlib
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile

import pytest

import places
import sandbox
from test_troubleshooting import matches

PAGE = places.ROOT / "docs" / "troubleshooting.md"
DOCTOR = places.BUILD / "bin" / "uwarp-doctor"
LOG = {"UWARP_LOG": "1"}
SHORT = ["-S", 64, "-C", 10, "-I", 10]
NO_SUCH_HOST = "203.0.113.9"


def table():
    """mistake -> (what is printed, what the doctor says)"""
    section = PAGE.read_text().split("## Ten common mistakes")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")]
            for line in section.splitlines() if line.startswith("| ")][2:]
    return {re.sub(r"\[(.*)\]\(.*\)", r"\1", row[0]): (row[1].strip("`"), row[2].strip("`"))
            for row in rows}


MISTAKES = table()
SHOWN = set()


def check(mistake, program, doctor):
    printed, found = MISTAKES[mistake]
    assert matches(printed, program), f"not printed: {printed}\n{program}"
    assert matches(found, doctor), f"not found: {found}\n{doctor}"


def clean(env=None):
    return {key: value for key, value in os.environ.items()
            if not key.startswith("UWARP_")} | (env or {})


def output(*command, env=None, enter=(), **keywords):
    """Both streams of a command that ends, whatever its status."""
    return subprocess.run([*enter, *map(str, command)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, env=clean(env),
                          timeout=places.GUARD_SECONDS, **keywords).stdout


def run(*command, **keywords):
    return output(places.UWARP_RUN, *command, **keywords)


def doctor(*arguments, **keywords):
    return output(DOCTOR, *arguments, **keywords)


def test_ten_mistakes_are_in_the_table():
    assert len(MISTAKES) == 10


# ---- The other side


@pytest.mark.parametrize("server, client", [("roce", "iwarp"), ("iwarp", "roce")])
def test_personas_differ(start, port, server, client):
    """rsockets have a protocol for each kind of adapter, so they do not understand each other. The side
    with roce speaks first; it may be ended before it has the answer."""
    passive = start(["rstream", "-b", "127.0.0.1", "-p", port, *SHORT],
                    env=LOG | {"UWARP_PERSONA": server})
    places.wait_listening(passive, port)
    active = start(["rstream", "-s", "127.0.0.1", "-p", port, *SHORT],
                   env=LOG | {"UWARP_PERSONA": client})
    said = "the peer has the {} persona and this process the {} persona"
    informed = active if client == "iwarp" else passive
    places.wait_until(lambda: said.format("roce", "iwarp") in informed.output, lambda: str(informed))
    text = active.output
    for process in (active, passive):
        process.reap()
    serving = start(["rping", "-s", "-P", "-a", "127.0.0.1", "-p", port],
                    env={"UWARP_PERSONA": server})
    places.wait_listening(serving, port)
    found = doctor(f"127.0.0.1:{port}", env={"UWARP_PERSONA": client})
    if server == "roce":
        check("The personas differ", text, found)
    else:
        assert "it is a uwarp of the iwarp persona, and programs here have the roce" in found
    assert "persona" not in doctor(f"127.0.0.1:{port}", env={"UWARP_PERSONA": server})


@pytest.mark.parametrize("server, client", [("roce", "iwarp"), ("iwarp", "roce")])
def test_programs_that_do_not_ask_work_all_the_same(start, port, server, client):
    """rping wants one Read, which the side that acknowledges by Reads has to share."""
    passive = start(["rping", "-s", "-a", "127.0.0.1", "-p", port, "-C", 20, "-V"],
                    env={"UWARP_PERSONA": server})
    places.wait_listening(passive, port)
    active = start(["rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", 20, "-V", "-v"],
                   env={"UWARP_PERSONA": client})
    assert active.succeed().count("ping data: ") == 20, active
    passive.succeed()


@pytest.mark.parametrize("persona", ["iwarp", "roce"])
def test_nothing_is_said_of_one_persona(start, port, persona):
    env = LOG | {"UWARP_PERSONA": persona}
    passive = start(["rping", "-s", "-a", "127.0.0.1", "-p", port, "-C", 3], env=env)
    places.wait_listening(passive, port)
    active = start(["rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", 3], env=env)
    active.succeed()
    passive.succeed()
    assert "persona" not in active.output + passive.output


def test_firewall(veth):
    """Frames to an address that no host on the link has vanish, as behind a firewall that drops."""
    client = veth.client
    address = re.sub(r"\d+$", "77", client.address)
    netdev = client.device.removeprefix("uwarp_")
    subprocess.run([*client.enter, "ip", "neigh", "replace", address, "lladdr",
                    "02:00:00:00:00:77", "dev", netdev, "nud", "permanent"], check=True)
    printed = run("rping", "-c", "-a", address, "-p", 7471, enter=client.enter,
                  env=LOG | {"UWARP_CONNECT_TIMEOUT_MS": "1000"})
    check("A firewall drops the port", printed,
          doctor("--timeout", 1, f"{address}:7471", enter=client.enter))


def test_wrong_address(veth):
    printed = run("rping", "-c", "-a", NO_SUCH_HOST, "-p", 7471, env=LOG,
                  enter=veth.client.enter)
    check("The address is wrong", printed,
          doctor(f"{NO_SUCH_HOST}:7471", enter=veth.client.enter))


def test_wrong_address_of_a_server():
    printed = run("rping", "-s", "-a", NO_SUCH_HOST, "-p", 7471, env=LOG)
    assert matches("rdma_cm: cannot bind ... No network device of this host has the address",
                   printed), printed


def test_port_is_taken(port):
    with socket.create_server(("127.0.0.1", port)):
        printed = run("rping", "-s", "-a", "127.0.0.1", "-p", port, env=LOG)
        found = doctor("--timeout", 1, f"127.0.0.1:{port}")
    check("The port is taken", printed, found)


# ---- The program


def elf(path, interpreter=None, bits=64):
    """A file that begins as a program does, and that no system executes. With an interpreter it names what
    loads it, as programs that are linked dynamically do."""
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9)
    name = (interpreter or "").encode() + b"\0"
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56,
                                 1 if interpreter else 0, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(name), len(name), 1)
    path.write_bytes(header + segment + name)
    path.chmod(0o755)
    return path


def test_musl(tmp_path):
    program = elf(tmp_path / "of_alpine", "/lib/ld-musl-x86_64.so.1")
    check("The program uses musl", run(program), doctor("--program", program))


@pytest.fixture(scope="module")
def static_program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("static")
    (folder / "main.c").write_text("int main(void) { return 3; }\n")
    subprocess.run(["cc", "-static", folder / "main.c", "-o", folder / "main"], check=True)
    return folder / "main"


def test_static(static_program):
    check("The program is static", run(static_program), doctor("--program", static_program))
    assert run(static_program, env={"UWARP_LOG": "0"}) == ""
    done = subprocess.run([places.UWARP_RUN, static_program], check=False,
                          stderr=subprocess.DEVNULL)
    assert done.returncode == 3, "it runs all the same"


@pytest.fixture
def open_folder():
    """One that other users may enter: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield pathlib.Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to root, and runs it as another user")
def test_setuid(open_folder):
    program = open_folder / "ping"
    shutil.copy("/bin/true", program)
    program.chmod(0o4755)
    other = {"user": 65534, "group": 65534, "extra_groups": []}
    check("The program is setuid", run(program, **other), doctor("--program", program, **other))
    assert program.stat().st_mode & stat.S_ISUID
    assert "gets more rights" not in doctor("--program", program), "root gains nothing by it"


@pytest.mark.skipif(os.geteuid() != 0, reason="sets an attribute of a file")
def test_capabilities_are_more_rights(open_folder):
    program = open_folder / "ping"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    try:
        # Version 2, CAP_NET_RAW, permitted and effective.
        os.setxattr(program, "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0))
    except OSError as error:
        pytest.skip(f"no file capabilities here: {error}")
    other = {"user": 65534, "group": 65534, "extra_groups": []}
    assert "gets more rights" in doctor("--program", program, **other)


def test_32_bits(tmp_path):
    program = elf(tmp_path / "old", bits=32)
    assert "is a program of 32 bits" in doctor("--program", program)


@pytest.mark.parametrize("program", ["ibv_devices", sys.executable, "/bin/sh"])
def test_nothing_is_said_of_ordinary_programs(program):
    assert "can be run under uwarp-run" in doctor("--program", program)
    assert "without uwarp" not in run(program, "--version")


def test_scripts_and_what_is_no_program(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    assert run(script) == ""
    assert "can be run under uwarp-run" in doctor("--program", script)
    for name in ("no-such-program", tmp_path):
        assert "is no program that this user may run" in doctor("--program", name)


@pytest.mark.parametrize("size", [0, 4, 20, 64, 100, 121])
def test_programs_that_are_cut(tmp_path, size):
    """Whatever such a file is, judging it does no harm."""
    program = elf(tmp_path / "cut", "/lib64/ld-linux-x86-64.so.2")
    program.write_bytes(program.read_bytes()[:size])
    assert "\nThis machine is" in doctor("--program", program)


# ---- This machine


def test_no_address():
    if not places.can_unshare():
        pytest.skip("no right to make network namespaces")
    space = places.Namespace()
    try:
        check("No network device has an address", run("ibv_devices", env=LOG, enter=space.enter()),
              doctor(enter=space.enter()))
    finally:
        space.close()


@pytest.fixture
def old_library(tmp_path):
    """A folder with a libibverbs that has no interface for plugins of release 34 or later."""
    (tmp_path / "old.c").write_text(
        "void verbs_register_driver_17(void) {}\n"
        "void *ibv_get_device_list(int *count) { if (count) *count = 0; return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", tmp_path / "old.c",
                    "-o", tmp_path / "libibverbs.so.1.1.17.0"], check=True)
    (tmp_path / "libibverbs.so.1").symlink_to("libibverbs.so.1.1.17.0")
    return tmp_path


def test_old_rdma_core(old_library):
    env = {"LD_LIBRARY_PATH": str(old_library)}
    # As libibverbs looks for devices: the names first, then the nodes.
    program = ("import ctypes, os; library = ctypes.CDLL('libibverbs.so.1')\n"
               "for name in os.listdir('/sys/class/infiniband_verbs'):\n"
               "    if name.startswith('uverbs'): os.stat(f'/dev/infiniband/{name}')\n"
               "print(library.ibv_get_device_list(None))")
    printed = run(sys.executable, "-c", program, env=env)
    check("rdma-core is too old", printed, doctor(env=env))
    assert "uwarp:" not in run(sys.executable, "-c", program, env=env | {"UWARP_LOG": "0"})


def refuse(call, *conditions):
    """For the child of a fork: a filter of seccomp."""
    def confine():
        rules = sandbox.seccomp.SyscallFilter(sandbox.seccomp.ALLOW)
        sandbox.refuse(rules, call, *conditions)
        rules.load()
    return confine


needs_seccomp = pytest.mark.skipif(sandbox.seccomp is None, reason="python3-seccomp is not installed")


@needs_seccomp
def test_seccomp():
    confine = refuse("epoll_create1")
    check("A seccomp filter refuses a system call", run("ibv_devinfo", env=LOG, preexec_fn=confine),
          doctor(preexec_fn=confine))


@needs_seccomp
@pytest.mark.parametrize("call, condition, named", [
    ("epoll_create1", None, "epoll_create1"),
    ("eventfd2", None, "eventfd"),
    ("memfd_create", None, "memfd_create"),
    ("getrandom", None, "getrandom"),
    ("socket", socket.AF_INET, "socket(AF_INET)"),
    ("socket", socket.AF_NETLINK, "socket(AF_NETLINK)"),
])
def test_doctor_names_what_seccomp_refuses(call, condition, named):
    conditions = [] if condition is None else [
        sandbox.seccomp.Arg(0, sandbox.seccomp.EQ, condition)]
    text = doctor(preexec_fn=refuse(call, *conditions))
    assert matches(f"problem syscalls {named} fails: {os.strerror(errno.EPERM)}", text), text
    assert matches("-> Allow it in the seccomp profile", text), text
    assert "This machine is not ready" in text


@needs_seccomp
def test_doctor_warns_of_memory_that_may_not_be_read():
    text = doctor(preexec_fn=refuse("process_vm_readv"))
    assert matches("warning syscalls process_vm_readv and process_vm_writev fail", text), text
    assert "This machine is ready, with" in text


@needs_seccomp
def test_doctor_tells_a_filter_that_allows_all_from_none():
    assert matches("ok syscalls the seccomp filter allows all that is needed",
                   doctor(preexec_fn=refuse("kexec_load")))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(21, 0, 0, 0, 0) == 0:  # PR_GET_SECCOMP: this process has none
        assert matches("ok syscalls no seccomp filter", doctor())
