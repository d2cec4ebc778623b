# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Programs that may not make one of the system calls that the library makes, as under the seccomp
policy of a container: they work by another way, or end with an error that says something. None hangs,
none is killed by a signal."""

import errno
import pathlib
import sys

import pytest

import places
import sandbox

pytestmark = pytest.mark.skipif(sandbox.seccomp is None, reason="python3-seccomp is not installed")

# What the library and those it stands on call on some system or other. Left out is what the loader
# and libc cannot live without: openat, read, write, close, mmap, mprotect, munmap, fstat, execve,
# exit_group, futex, brk, rt_sig*, set_*.
CALLS = """
    accept4 bind bpf clock_nanosleep clone clone3 connect dup epoll_create1 epoll_ctl epoll_pwait
    epoll_pwait2 eventfd2 faccessat2 fallocate fcntl flock fstatfs ftruncate getdents64 getpeername
    getpid getppid getrandom getsockname getsockopt gettid inotify_add_watch inotify_init1 ioctl kcmp
    listen madvise membarrier memfd_create mkdir mkdirat newfstatat pidfd_open poll ppoll prctl pread64
    prlimit64 process_vm_readv process_vm_writev readlink readlinkat recvfrom recvmsg renameat rename
    restart_syscall rmdir sched_getaffinity sched_getattr sched_setattr sched_yield sendmmsg sendmsg
    sendto setsockopt shutdown socket socketpair statfs statx symlinkat sysinfo timerfd_create
    timerfd_settime uname unlink unlinkat
    """.split()
# Where something went wrong once, or has another way; the others are left to --applications.
EVERY_RUN = """
    epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 eventfd2 getrandom memfd_create process_vm_readv
    sendmsg shutdown
    """.split()
REFUSE = pathlib.Path(__file__).parent / "refuse_call.py"


def clients(port, address):
    return {
        "rdma": (["rdma_server", "-p", port], ["rdma_client", "-s", address, "-p", port]),
        "ibv": (["ibv_rc_pingpong", "-p", port, "-g", 0, "-n", 20],
                ["ibv_rc_pingpong", "-p", port, "-g", 0, "-n", 20, address]),
    }


@pytest.mark.parametrize("call", [
    pytest.param(call, marks=() if call in EVERY_RUN else pytest.mark.applications)
    for call in CALLS])
@pytest.mark.parametrize("kind, error, carrier", [("rdma", errno.EPERM, "shared memory"),
                                                  ("ibv", errno.ENOSYS, "TCP")],
                         ids=["rdma-EPERM-shm", "ibv-ENOSYS-tcp"])
def test_one_call_is_refused(start, loopback, port, call, kind, error, carrier):
    server, client = clients(port, loopback.server.address)[kind]
    env = {"UWARP_SHM": "1" if carrier == "shared memory" else "0"}
    passive = start(server, loopback.server, env=env)
    places.wait_listening(passive, port)
    active = start([sys.executable, REFUSE, call, error, loopback.client.uwarp_run, *client],
                   loopback.client, uwarp=False, env=env)
    status = active.wait()
    assert status >= 0, f"killed by signal {-status}: {active}"
    assert status == 0 or active.output.strip(), "failed without a word"
