# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""uwarp-run itself, and programs that have nothing to do with RDMA under it."""

import os
import pathlib
import re
import resource
import shutil
import subprocess

import pytest

import places

HELPERS = places.BUILD / "tests"


def plain(command):
    """The same command without uwarp: status, stdout, stderr."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def under_uwarp(command):
    return plain([str(places.UWARP_RUN), *command])


SHELL_LINES = {
    "output": "echo one; echo two >&2; exit 7",
    "pipes": "printf 'b\\na\\n' | sort | tr a-z A-Z",
    "redirects": "exec 9</etc/passwd; head -n 1 <&9; exec 9<&-; cat <&9",
    "substitution": "for f in $(ls /dev/null 2>/dev/null); do echo $f; done; echo $(echo x)",
    "descriptors": "ls /proc/self/fd | wc -l",
    "missing file": "cat /nonexistent/file",
    "directories": "ls -d /sys/class/net; test -e /sys/class/infiniband && echo yes; stat -c %F /dev/null",
    "background": "sleep 0.05 & wait; echo $?",
    "signals": "kill -TERM $$",
}


@pytest.mark.parametrize("line", [line for name, line in SHELL_LINES.items() if name != "directories"],
                         ids=[name for name in SHELL_LINES if name != "directories"])
def test_shell_is_unaffected(line):
    assert under_uwarp(["sh", "-c", line]) == plain(["sh", "-c", line])


def test_compiler_is_unaffected(tmp_path):
    source = tmp_path / "hello.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("hello"); return 5; }\n')
    binary = tmp_path / "hello"
    assert under_uwarp(["cc", "-o", str(binary), str(source)])[0] == 0
    assert under_uwarp([str(binary)]) == (5, "hello\n", "")
    broken = tmp_path / "broken.c"
    broken.write_text("int main(void) { return }\n")
    command = ["cc", "-c", "-o", "/dev/null", str(broken)]
    assert under_uwarp(command) == plain(command)


def test_engine_is_not_loaded_by_others():
    """Programs without RDMA do not pay for it: no engine, no C++ library, no thread."""
    maps = under_uwarp(["cat", "/proc/self/maps"])[1]
    assert "libuwarp-preload.so" in maps
    assert "libuwarp.so" not in maps and "libstdc++" not in maps
    assert re.search(r"^Threads:\s+1$", under_uwarp(["cat", "/proc/self/status"])[1], re.M)


def test_python_sockets_are_unaffected():
    program = (
        "import socket, threading\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "def serve():\n"
        "  c, _ = s.accept()\n"
        "  while d := c.recv(4096): c.sendall(d)\n"
        "threading.Thread(target=serve, daemon=True).start()\n"
        "c = socket.create_connection(s.getsockname())\n"
        "c.sendall(b'x' * 100000); c.shutdown(socket.SHUT_WR)\n"
        "n = 0\n"
        "while d := c.recv(4096): n += len(d)\n"
        "print(n)\n")
    assert under_uwarp(["/usr/bin/python3", "-c", program]) == (0, "100000\n", "")


def test_open_files_limit_is_raised():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = ["sh", "-c", f"ulimit -Sn 64; exec {places.UWARP_RUN} sh -c 'ulimit -Sn'"]
    assert plain(command)[1].strip() in (str(hard), "unlimited")


def test_run_passes_arguments_and_status():
    assert under_uwarp(["sh", "-c", 'printf "%s|" "$@"; exit 9', "x", "-a", "--help", "", "a b"]) == (
        9, "-a|--help||a b|", "")


def test_run_reports_missing_commands():
    status, _, complaint = under_uwarp(["/nonexistent/command"])
    assert status == 127 and "No such file" in complaint
    status, _, complaint = under_uwarp([str(places.ROOT / "README.md")])
    assert status == 126 and "Permission denied" in complaint
    assert plain([str(places.UWARP_RUN)])[0] == 125


def test_run_help_lists_settings():
    status, output, _ = under_uwarp(["--help"])
    assert status == 0
    for name in ("UWARP_NETDEVS", "UWARP_CRC", "UWARP_LOG", "UWARP_PORT_RANGE"):
        assert name in output


def test_run_keeps_other_preloads():
    env = dict(os.environ, LD_PRELOAD="libc.so.6")
    shown = subprocess.run([str(places.UWARP_RUN), "sh", "-c", "echo $LD_PRELOAD"], env=env,
                           capture_output=True, text=True, check=True, timeout=60).stdout
    first, rest = shown.strip().split(":")
    assert first.endswith("libuwarp-preload.so") and rest == "libc.so.6"


def report_lines(report):
    return report.read_text().splitlines() if report.exists() else []


@pytest.mark.parametrize("case", ["plain", "daemon", "daemon-late", "close-all", "fork-child"])
def test_survives(start, port, tmp_path, case):
    """Daemons, programs that close every descriptor, and children that fork gave."""
    report = tmp_path / "report"
    process = start([HELPERS / "survivor", case, port, report])
    wanted = 2 if case == "fork-child" else 1
    process.wait()

    def finished():
        lines = report_lines(report)
        return lines.count("works") == wanted or any(line.startswith("failed") for line in lines)

    try:
        places.wait_until(finished, lambda: f"the report {report_lines(report)} of {process}", 20)
    finally:
        for line in report_lines(report):
            if line.startswith("pid "):
                end_daemon(int(line.split()[1]))
    assert report_lines(report).count("works") == wanted, report_lines(report)


AS_ROOT = ("user", "chroot", "user-chroot")


@pytest.mark.parametrize("case", [
    "plain", "user", "undumpable", "chroot", "user-chroot", "fewer-files", "no-files", "no-stdio",
    "threads", "exit-in-handler", "exit-in-thread"])
def test_process_changes_at_work(start, port, tmp_path, case):
    """A connection goes on while its process becomes another kind of process, and new ones are made."""
    if case in AS_ROOT and os.geteuid() != 0:
        pytest.skip("needs root")
    report = tmp_path / "report"
    process = start([HELPERS / "process_change", case, port, report])
    assert process.wait() == 0, (report_lines(report), process)
    assert report_lines(report) == ([] if case.startswith("exit") else ["works"])


@pytest.mark.parametrize("case, said", [
    ("listen-daemon", "uwarp: 1 rdma_cm listener will end with this process"),
    ("listen-fork", "uwarp: 1 rdma_cm listener stayed in the parent of this process")])
def test_listening_before_becoming_a_daemon_is_told(start, port, tmp_path, case, said):
    """Its listeners are lost, and the user hears what to do."""
    report = tmp_path / "report"
    log = tmp_path / "log"
    process = start([HELPERS / "survivor", case, port, report], env={"UWARP_LOG": str(log)})
    process.wait()
    places.wait_until(lambda: "works" in report_lines(report),
                      lambda: f"the report {report_lines(report)} of {process}")
    assert said in process.output and "after daemon() or fork()" in process.output
    # In the log since the session began, when stderr still was what the user sees.
    assert said.removeprefix("uwarp: ") in log.read_text()


def test_sessions_without_listeners_are_silent(start, port, tmp_path):
    report = tmp_path / "report"
    process = start([HELPERS / "survivor", "daemon", port, report])
    process.wait()
    places.wait_until(lambda: "works" in report_lines(report),
                      lambda: f"the report {report_lines(report)} of {process}")
    assert "listener" not in process.output


def end_daemon(pid):
    """Kills the daemon that survivor reported, if it is still that program."""
    try:
        if b"survivor" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, 9)
    except OSError:
        pass


CHECKED = r"""
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char** argv) {
  int count = 0;
  struct ibv_device** devices = ibv_get_device_list(&count);
  struct ibv_context* context = count > 0 ? ibv_open_device(devices[count - 1]) : NULL;
  struct ibv_pd* domain = context ? ibv_alloc_pd(context) : NULL;
  char* buffer = malloc(64);
  struct ibv_mr* region = domain ? ibv_reg_mr(domain, buffer, 64, IBV_ACCESS_LOCAL_WRITE) : NULL;
  if (!region) return 3;
  ((volatile char*)buffer)[argc > 1 ? 64 : 0] = 1;
  ibv_dereg_mr(region);
  ibv_dealloc_pd(domain);
  ibv_close_device(context);
  ibv_free_device_list(devices);
  free(buffer);
  puts("works");
  return 0;
}
"""


@pytest.mark.parametrize("compiler", ["gcc", "gcc -static-libasan", "clang", "clang -shared-libasan"])
def test_programs_with_address_sanitizer(compiler, tmp_path):
    """They run, by a script too, and what they do wrong is found."""
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip("there is no such compiler")
    source = tmp_path / "checked.c"
    source.write_text(CHECKED)
    binary = str(tmp_path / "checked")
    build = [*compiler.split(), "-fsanitize=address", "-o", binary, str(source), "-libverbs"]
    if "-shared-libasan" in build:
        library = plain(["clang", "-print-file-name=libclang_rt.asan-x86_64.so"])[1].strip()
        build.append(f"-Wl,-rpath,{os.path.dirname(library)}")
    if plain(build)[0] != 0:
        pytest.skip("the compiler has no AddressSanitizer")
    assert under_uwarp([binary]) == (0, "works\n", "")
    assert under_uwarp(["sh", "-c", binary]) == (0, "works\n", "")
    status, _, complaint = under_uwarp([binary, "overflow"])
    assert status == 1 and "heap-buffer-overflow" in complaint


@pytest.mark.parametrize("before, after", [
    (None, "verify_asan_link_order=0"),
    ("", "verify_asan_link_order=0"),
    ("exitcode=42", "exitcode=42:verify_asan_link_order=0"),
    ("verify_asan_link_order=1", "verify_asan_link_order=1")])
def test_options_of_address_sanitizer_are_kept(before, after):
    env = dict(os.environ)
    env.pop("ASAN_OPTIONS", None)
    if before is not None:
        env["ASAN_OPTIONS"] = before
    shown = subprocess.run([str(places.UWARP_RUN), "sh", "-c", "echo $ASAN_OPTIONS"], env=env,
                           capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown == after + "\n"


def exported(library):
    """Names of the functions that a library defines for others."""
    lines = plain(["nm", "-D", "--defined-only", str(library)])[1].splitlines()
    return {re.sub("@.*", "", line.split()[-1]) for line in lines if line.split()[-2] in "TWi"}


def libc():
    return next(line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines()
                if re.search(r"/libc\.so\.6$", line))


# What libc has of these names and what does not wait for a descriptor of the application's, or by way
# of others: at an offset (a channel has none), of another process, requests that a thread of libc's
# own answers, helpers of RPC and of libc itself.
NOT_WAITS = re.compile("preadv(64)?|process_vm_readv|aio_read(64)?|_IO_.*|.*nss_.*|.*svc_.*|"
                       "(eventfd|fts(64)?)_read|epoll_create1?|.*_nocancel|__recv|"
                       "getaddrinfo.*")


def test_every_way_of_waiting_is_interposed():
    """A libc with one more call is to be looked at."""
    waits = {name for name in exported(libc())
             if re.search("poll|select|readv|recv|_read$|^_*read(_chk)?$", name)
             and not NOT_WAITS.fullmatch(name)}
    assert {"poll", "select", "__ppoll_chk", "recvmsg", "__read_chk"} <= waits
    assert waits <= exported(places.BUILD / "lib/libuwarp-preload.so")


# The calls that take the name of a file, in all forms that a libc may have.
NAMES_A_FILE = re.compile(
    r"(__)?f?(re)?open(at)?(64)?(_2)?|creat(64)?|(__)?[lf]?x?stat(at|x)?(64)?|statv?fs(64)?|"
    r"f?access(at)?|e(uid)?access|(__)?readlink(at)?(_chk)?|(__)?realpath(_chk)?|"
    r"canonicalize_file_name|l?(get|list)xattr|pathconf|inotify_add_watch|chdir|(fd)?opendir|"
    r"(seek|tell|rewind|close)dir|readdir(64)?(_r)?|scandir(at)?(64)?|glob(64)?|n?ftw(64)?|"
    r"fts(64)?_open")


def test_every_way_to_a_file_is_interposed():
    ways = {name for name in exported(libc()) if NAMES_A_FILE.fullmatch(name)}
    assert {"open", "__open64_2", "freopen64", "statx", "__readlinkat_chk", "glob64", "nftw"} <= ways
    # By its descriptor; old programs know no other names of it.
    missing = ways - exported(places.BUILD / "lib/libuwarp-preload.so")
    assert missing <= {"__fstat64"}, "that one is for libraries of libc's own"


def test_no_trees_are_left(start, port, tmp_path):
    """Nothing stays behind in the temporary folders after a process has ended in order."""
    places_to_look = [pathlib.Path("/tmp"), pathlib.Path("/dev/shm")]

    process = start(["ibv_devinfo", "-v"])
    process.succeed()
    # Others may run beside this one.
    assert not [path for place in places_to_look for path in place.glob(f"*uwarp-{process.pid}-*")]
