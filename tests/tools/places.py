# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Where the two ends of a test run, and the processes in them.

A Place is a network namespace with an address and a device; a Link is a pair of places that reach
each other: both on loopback, or two namespaces over veth. Process runs a command in a place with
its output kept in a file, and never outlives its test.
"""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("UWARP_BUILD", ROOT / "build")).resolve()
UWARP_RUN = BUILD / "bin" / "uwarp-run"

# Deadlines here are hang guards, far above what a run takes on an idle machine.
GUARD_SECONDS = float(os.environ.get("UWARP_TEST_GUARD", "60"))
POLL_SECONDS = 0.02

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000


class Place:
    """One end: how to enter its namespace, its address, IPv6 address and device."""

    uwarp_run = UWARP_RUN

    def __init__(self, name, enter, address, address6, device):
        self.name = name
        self.enter = list(enter)
        self.address = address
        self.address6 = address6
        self.device = device

    def listening(self, process, port):
        """Whether a process started here listens on the port."""
        return listening(process.pid, port)


class Link:
    """A server's and a client's place."""

    def __init__(self, name, server, client):
        self.name = name
        self.server = server
        self.client = client

    def __repr__(self):
        return self.name


def die_with_parent():
    """For the child of a fork: a killed test run leaves no server behind."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A command in a process group of its own, with stdout and stderr in one file."""

    def __init__(self, command, place=None, uwarp=True, env=None, stdin=subprocess.DEVNULL):
        self.command = [str(part) for part in command]
        self.place = place or loopback().server
        full = list(self.place.enter)
        if env:
            full += ["env"] + [f"{key}={value}" for key, value in env.items()]
        if uwarp:
            full.append(str(self.place.uwarp_run))
        full += self.command
        self._output = tempfile.TemporaryFile()
        self.child = subprocess.Popen(
            full, stdin=stdin, stdout=self._output, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=die_with_parent
        )
        self.pid = self.child.pid

    @property
    def output(self):
        return os.pread(self._output.fileno(), 1 << 26, 0).decode(errors="replace")

    def running(self):
        return self.child.poll() is None

    def send(self, signal_number):
        self.child.send_signal(signal_number)

    def wait(self, seconds=None):
        """The exit status; a process that does not end in time fails the test."""
        try:
            return self.child.wait(seconds or GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            stacks = self._stacks()
            self.reap()
            raise AssertionError(f"still running: {self}\n{stacks}") from None

    def succeed(self, seconds=None):
        try:
            status = self.wait(seconds)
        except AssertionError:
            # rping of rdma-core 59 and later may wait for its own thread for ever (docs/releases.md).
            if "UWARP_RDMA_CORE" not in os.environ or self.command[0] != "rping":
                raise
            return self.output
        # rping's main thread destroys the event channel at its end while its other thread may be
        # about to read it: then that one exits the process with 255. A kernel answers alike.
        own_race = status == 255 and "rdma_get_cm_event: Bad file descriptor" in self.output
        assert status == 0 or (own_race and self.command[0] == "rping"), f"status {status}: {self}"
        return self.output

    def reap(self):
        if self.child.poll() is None:
            # Not waited for yet, so the group's number is still ours.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.child.wait()

    def _stacks(self):
        lines = []
        for task in sorted(pathlib.Path(f"/proc/{self.pid}/task").glob("*")):
            with contextlib.suppress(OSError):
                where = (task / "wchan").read_text() or "-"
                state = (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
                lines.append(f"thread {task.name}: {state} {where}")
        return "\n".join(lines)

    def __str__(self):
        return f"{' '.join(self.command)}\n---- output\n{self.output}----"


ESTABLISHED, LISTEN = "01", "0A"


def sockets_of_group(group):
    """Inodes of all sockets that processes of this process group have open."""
    found = set()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(process.name)) != group:
                continue
            for fd in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(fd)
                    if target.startswith("socket:["):
                        found.add(target[8:-1])
    return found


def has_socket(pid, port, state, tables=("tcp", "tcp6")):
    """Whether the group of the process has a TCP socket of this local port and state. Other
    processes of its namespace do not count: another run of the tests may use the same port."""
    inodes = set()
    for table in tables:
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == state and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(fields[9])
    return bool(inodes) and not inodes.isdisjoint(sockets_of_group(pid))


def listening(pid, port):
    return has_socket(pid, port, LISTEN)


def connected(pid, port):
    return has_socket(pid, port, ESTABLISHED)


UNCONNECTED = "07"


def takes_datagrams(pid, port):
    """Whether the group of the process has a UDP socket of this port to which every host may send."""
    return has_socket(pid, port, UNCONNECTED, ("udp", "udp6"))


@contextlib.contextmanager
def started_processes():
    """start(command, place, ...) -> Process. What still runs at the end is killed."""
    started = []

    def start(*arguments, **keywords):
        process = Process(*arguments, **keywords)
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.reap()


def wait_until(condition, what, seconds=None):
    deadline = time.monotonic() + (seconds or GUARD_SECONDS)
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what()}"
        time.sleep(POLL_SECONDS)


def wait_listening(server, port, seconds=None):
    wait_until(
        lambda: not server.running() or server.place.listening(server, port),
        lambda: f"a listener on port {port} by {server}", seconds,
    )
    assert server.running(), f"ended before it listened: {server}"


def wait_datagrams(server, port):
    wait_until(
        lambda: not server.running() or takes_datagrams(server.pid, port),
        lambda: f"a UDP socket on port {port} by {server}",
    )
    assert server.running(), f"ended before: {server}"


def can_unshare():
    enter = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    return shutil.which("unshare") and subprocess.run(
        enter + ["true"], stderr=subprocess.DEVNULL, check=False
    ).returncode == 0


def enter_namespace():
    """Moves this process into a network namespace of its own, which needs root."""
    if LIBC.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class Namespace:
    """A network namespace, held alive by a waiting process.

    Root makes it directly. Other users make it inside a user namespace, where that is allowed: a new
    one, or that of `beside`.
    """

    def __init__(self, beside=None):
        if os.geteuid() == 0:
            command = ["unshare", "-n"]
        else:
            command = beside.enter() + ["unshare", "-n"] if beside else ["unshare", "-Urn"]
        # It ends with the pipe, that is with this process however that ends.
        self._holder = subprocess.Popen(command + ["sh", "-c", "echo; exec cat"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=True)
        assert self._holder.stdout.readline() == b"\n", "cannot make a network namespace"
        self.pid = self._holder.pid

    def enter(self):
        """What to put in front of a command that is to run inside."""
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        return ["nsenter", "-t", str(self.pid), *user, "-n"]

    def ip(self, *arguments):
        subprocess.run(self.enter() + ["ip", *arguments], check=True)

    def close(self):
        self._holder.kill()
        self._holder.wait()


class Namespaces:
    """Two network namespaces joined by a veth pair."""

    MTU = 1500

    def __init__(self):
        with contextlib.ExitStack() as undone:
            self.near = Namespace()
            undone.callback(self.near.close)
            self.far = Namespace(beside=self.near)
            undone.callback(self.far.close)
            self._wire()
            undone.pop_all()

    def _wire(self):
        self.near.ip("link", "add", "veth0", "mtu", str(self.MTU), "type", "veth", "peer", "name",
                     "veth1", "mtu", str(self.MTU), "netns", str(self.far.pid))
        self._set_up("veth0", "veth1")

    def _set_up(self, near_device, far_device):
        for space, link, number in ((self.near, near_device, 1), (self.far, far_device, 2)):
            space.ip("link", "set", "lo", "up")
            space.ip("link", "set", link, "up")
            space.ip("addr", "add", f"10.77.0.{number}/24", "dev", link)
            space.ip("-6", "addr", "add", f"fd77::{number}/64", "dev", link, "nodad")
        self._ends = [Place(name, space.enter(), f"10.77.0.{number}", f"fd77::{number}",
                            f"uwarp_{device}")
                      for name, space, device, number in (("near", self.near, near_device, 1),
                                                          ("far", self.far, far_device, 2))]

    def link(self):
        return Link("veth", *self._ends)

    def close(self):
        self.far.close()
        self.near.close()


class FarNamespaces(Namespaces):
    """The same with far_wire between them, which is told how far and how bad the way is."""

    def __init__(self, *options):
        self._options = [str(option) for option in options]
        super().__init__()

    def _wire(self):
        command = [*self.near.enter(), str(BUILD / "bin" / "far_wire"), "wire0",
                   f"/proc/{self.far.pid}/ns/net", *self._options]
        # It ends with the pipe, as the holders of the namespaces do.
        self._carrier = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         start_new_session=True)
        assert self._carrier.stdout.readline() == b"ready\n", "far_wire does not start"
        self._set_up("wire0", "wire0")

    def link(self):
        return Link("far", *self._ends)

    def close(self):
        self._carrier.stdin.close()
        self._carrier.wait()
        super().close()


def loopback():
    place = Place("loopback", [], "127.0.0.1", "::1", "uwarp_lo")
    return Link("loopback", place, place)
