# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A virtual machine whose kernel has siw, in a network namespace of its own.

Two forms: "qemu", Debian's kernel emulated on two processors, and "uml", User Mode Linux, whose
kernel code runs natively on one. The guest's programs are this machine's and the current build's,
packed anew at each start. Everything ends with the process that started it.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
import places  # noqa: E402

IMAGE = pathlib.Path(os.environ.get("UWARP_SIW_IMAGE", places.ROOT / "build-siw-lab")).resolve()
# On an idle machine 15 seconds. Without enough of a processor an emulated kernel finds no timer at its
# start, and stops.
BOOT_SECONDS = 120
BOOT_TRIES = 3
SHELL_PORT = 922
MEMORY_MIB = 2048

PROGRAMS = ["ip", "rdma", "rping", "ucmatose", "ibv_devices", "ibv_devinfo", "strace", "perf",
            *(f"ib_{operation}_{kind}" for operation in ("send", "write", "read")
              for kind in ("bw", "lat"))]
NFS_PROGRAMS = ["rpcbind", "rpc.mountd", "rpc.nfsd", "exportfs"]
BUILT = ["bin/uwarp-run", "bin/raw_tcp", "bin/verbs_bench", "tests/verbs_peer", "tests/siw_peer",
         "lib/libuwarp*.so*"]

GUEST_BUILD = "/lab/build"  # The build folder in the guest.

HOST_ADDRESS, GUEST_ADDRESS = "10.78.0.1", "10.78.0.2"
HOST_ADDRESS6, GUEST_ADDRESS6 = "fd78::1", "fd78::2"
TAP = "lab0"

# siw's switches as Linux compiles them.
STOCK = {"mpa_crc_required": 0, "mpa_crc_strict": 0, "mpa_version": 2, "peer_to_peer": 0,
         "rtr": 0xc0, "try_gso": 0}


def build_image(uml=False):
    """Makes the kernels unless they are there."""
    command = [HERE / "build-image", IMAGE] + (["--uml"] if uml else [])
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def libraries(program, search=()):
    """The shared libraries a program loads, by the names it loads them by."""
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, search))}
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False,
                            env=environment).stdout
    return re.findall(r"(/\S+) \(0x", listed)


class FileSystem:
    """The guest's root, copied together in a folder."""

    def __init__(self, folder):
        self.root = pathlib.Path(folder)
        self.root.chmod(0o755)  # for programs that do not stay root
        for place in ("bin", "dev", "etc", "lab", "proc", "run", "sys", "tmp", "usr"):
            (self.root / place).mkdir(parents=True)
        self._seen = set()

    def put(self, source, target=None):
        """A file, and the libraries it needs, where they are on this machine."""
        source = pathlib.Path(source)
        target = self.root / str(target or source).lstrip("/")
        if target in self._seen:
            return
        self._seen.add(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() and source.parent == source.resolve().parent:
            target.symlink_to(source.resolve().name)
            beside = target.parent.relative_to(self.root) / source.resolve().name
            self.put(source.resolve(), f"/{beside}")
            return
        shutil.copy(source, target)
        for library in libraries(source):
            self.put(library)

    def pack(self, archive):
        with open(archive, "wb") as output:
            subprocess.run("find . -print0 | cpio --null -o -H newc -R 0:0 --quiet", shell=True,
                           cwd=self.root, stdout=output, check=True)


def put_nfs_server(files):
    """From packages that are unpacked in the image's folder; their libraries go where the guest's
    other libraries are."""
    tree = IMAGE / "nfs"
    folders = [folder for folder in tree.glob("**/lib/*-linux-gnu") if folder.is_dir()]
    for name in NFS_PROGRAMS:
        program = next(path for path in tree.rglob(name) if path.parent.name == "sbin")
        for library in libraries(program, folders):
            inside = library.startswith(f"{tree}/")
            files.put(library, f"/lib/{pathlib.Path(library).name}" if inside else library)
        files.put(program, f"/usr/sbin/{name}")
    for folder in ("var/lib/nfs/v4recovery", "export"):
        (files.root / folder).mkdir(parents=True)
    (files.root / "var/run").symlink_to("../run")  # where the kernel looks for rpcbind
    for empty in ("etab", "rmtab"):
        (files.root / "var/lib/nfs" / empty).touch()
    files.put(HERE / "nfs_server", "/lab/nfs_server")
    for name in ("netconfig", "protocols", "rpc", "services"):
        with contextlib.suppress(FileNotFoundError):
            files.put(f"/etc/{name}")


def pack_guest(archive):
    with tempfile.TemporaryDirectory(prefix="uwarp-siw-root.") as folder:
        files = FileSystem(folder)
        files.put(IMAGE / "busybox", "/bin/busybox")
        files.put(HERE / "init", "/init")
        files.put(places.BUILD / "tests" / "guest_shell", "/lab/guest_shell")
        for program in filter(None, map(shutil.which, PROGRAMS)):
            files.put(program, f"/usr/bin/{pathlib.Path(program).name}")
        for pattern in BUILT:
            for built in places.BUILD.glob(pattern):
                target = f"{GUEST_BUILD}/{built.relative_to(places.BUILD)}"
                files.put(built, target)
                subprocess.run(["strip", "-g", files.root / target.lstrip("/")], check=True)
        for provider in pathlib.Path("/usr/lib").glob("*/libibverbs/libsiw-rdmav*.so"):
            files.put(provider)
        files.put("/etc/libibverbs.d/siw.driver")
        (files.root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        (files.root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n"
                                               "_rpc:x:100:65534::/run/rpcbind:/bin/false\n")
        put_nfs_server(files)
        shutil.copytree(IMAGE / "modules", files.root / "modules")
        files.pack(archive)


class Guest(places.Place):
    """The guest as a place for processes; `inside` enters a place of its own there."""

    uwarp_run = f"{GUEST_BUILD}/bin/uwarp-run"

    def __init__(self, enter, inside=(), address=GUEST_ADDRESS, address6=GUEST_ADDRESS6,
                 device="uwarp_eth0", siw_device="siw0"):
        shell = [str(places.BUILD / "tests" / "guest_shell"), GUEST_ADDRESS, str(SHELL_PORT)]
        super().__init__("guest", [*enter, *shell, *inside], address, address6, device)
        self.siw_device = siw_device

    def run(self, line, seconds=places.GUARD_SECONDS):
        """The output of a shell line that must succeed."""
        done = subprocess.run(self.enter + ["sh", "-c", line], stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, timeout=seconds, check=False)
        assert done.returncode == 0, f"in the guest: {line}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def listening(self, process, port):
        """Whether a socket listens there: one of siw belongs to no process."""
        pattern = f":{port:04X} [0:]* 0A"
        looked = self.run(f"cat /proc/net/tcp /proc/net/tcp6 | grep -c '{pattern}' || true")
        return int(looked) > 0

    def failed_requests(self, opcode, error):
        """How many requests of this kind siw's send side has given up with this errno. None where
        its kernel does not say."""
        log = self.run("test ! -e /proc/dynamic_debug/control || { echo log; dmesg; }")
        if not log:
            return None
        return len(re.findall(rf"wqe type {opcode} processing failed: -{error}$", log, re.M))

    def set_siw(self, **parameters):
        """siw's switches, which hold for new connections: mpa_crc_required, mpa_version,
        peer_to_peer, rtr, try_gso."""
        if parameters:
            self.run(" && ".join(f"echo {value} > /sys/module/siw/parameters/{name}"
                                 for name, value in parameters.items()))


class Vm:
    """The running machine: `host` and `guest` are the two ends of its network."""

    def __init__(self, form, niceness=10):
        self.form = form
        self._niceness = niceness
        self._folder = tempfile.TemporaryDirectory(prefix="uwarp-siw.")
        self.folder = pathlib.Path(self._folder.name)
        self.namespace = places.Namespace()
        self.host = places.Place("host", self.namespace.enter(), HOST_ADDRESS, HOST_ADDRESS6,
                                 f"uwarp_{TAP}")
        self.guest = Guest(self.namespace.enter())
        self._process = None
        try:
            self._wire()
            pack_guest(self.folder / "initramfs")
            self._boot()
        except BaseException:
            self.close()
            raise

    def _wire(self):
        ip = self.namespace.ip
        ip("link", "set", "lo", "up")
        ip("tuntap", "add", "dev", TAP, "mode", "tap")
        ip("link", "set", TAP, "up")
        ip("addr", "add", f"{HOST_ADDRESS}/24", "dev", TAP)
        ip("-6", "addr", "add", f"{HOST_ADDRESS6}/64", "dev", TAP, "nodad")

    def _command(self):
        cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
        megahertz = re.search(r"^cpu MHz\s*: (\S+)", cpuinfo, re.M)
        append = ["quiet", "panic=-1", f"lab.address={GUEST_ADDRESS}/24",
                  f"lab.address6={GUEST_ADDRESS6}/64", f"lab.shell={SHELL_PORT}",
                  f"lab.mhz={megahertz[1] if megahertz else 1000}"]
        return getattr(self, f"_{self.form}")(append)

    def _qemu(self, append):
        return ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
                "-m", MEMORY_MIB, "-nodefaults", "-display", "none", "-no-reboot",
                "-serial", f"file:{self.folder / 'console'}", "-device", "virtio-rng-pci",
                "-netdev", f"tap,id=n0,ifname={TAP},script=no,downscript=no",
                "-device", "virtio-net-pci,netdev=n0,romfile=",
                "-kernel", IMAGE / "vmlinuz", "-initrd", self.folder / "initramfs",
                "-append", " ".join(["console=ttyS0", "net.ifnames=0", "mitigations=off",
                                     *append])]

    def _uml(self, append):
        # Its memory is a file, which should be memory; a process namespace, as it is many processes. One
        # runs at a time, and the change to the next, at each system call, takes 10 times as long from one
        # processor to another.
        processor = max(os.sched_getaffinity(0))
        return ["taskset", "-c", processor, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
                "env", "TMPDIR=/dev/shm", IMAGE / "linux-uml", f"mem={MEMORY_MIB}M",
                f"uml_dir={self.folder}/", "umid=lab", f"initrd={self.folder / 'initramfs'}",
                "rdinit=/init", "con=null", "con0=null,fd:1",
                f"vec0:transport=tap,ifname={TAP},depth=128,gro=1", *append]

    def traffic(self):
        """Bytes that have passed between host and guest."""
        command = self.namespace.enter() + ["ip", "-s", "-j", "link", "show", TAP]
        counts = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return sum(counts[0]["stats64"][way]["bytes"] for way in ("rx", "tx"))

    def console(self):
        file = self.folder / "console"
        text = file.read_text(errors="replace") if file.exists() else ""
        return f"{text}\n{self._process.output if self._process else ''}"

    def _boot(self):
        for _ in range(BOOT_TRIES):
            self._process = places.Process(self._command(), self.host, uwarp=False)
            deadline = time.monotonic() + BOOT_SECONDS
            while self._process.running() and time.monotonic() < deadline:
                try:
                    self.guest.run("true", 5)
                    self._yield_to_others()
                    return
                except (AssertionError, subprocess.TimeoutExpired):
                    time.sleep(0.2)
            self._process.reap()
        raise AssertionError(f"the machine does not start:\n{self.console()}")

    def restart(self):
        self._process.reap()
        self._boot()

    def _yield_to_others(self):
        """All threads of the machine, which is one process or a group of them."""
        for task in pathlib.Path("/proc").glob("[0-9]*/task/[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(task.parts[2])) == self._process.pid:
                    os.setpriority(os.PRIO_PROCESS, int(task.name), self._niceness)

    def close(self):
        if self._process:
            self._process.reap()
        self.namespace.close()
        self._folder.cleanup()
