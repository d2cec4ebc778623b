# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Containers without a container engine: bubblewrap takes away what Docker, Kubernetes and systemd
take away, and a seccomp filter made here refuses the system calls that theirs refuse.

All containers of a test share a network namespace, as those of a pod do.
"""

import contextlib
import errno
import mmap
import shutil
import socket
import subprocess

import places

try:
    import seccomp
except ImportError:  # package python3-seccomp
    seccomp = None

UID = 1000
FILTER_FD = 9

# What Docker's page on its default profile lists as refused, and newer calls of the same kinds.
REFUSED_BY_DOCKER = """
    acct add_key bpf clock_adjtime clock_settime create_module delete_module fanotify_init
    finit_module fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy init_module
    io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl
    lookup_dcookie mbind mount mount_setattr move_mount move_pages name_to_handle_at nfsservctl
    open_by_handle_at open_tree perf_event_open personality pidfd_getfd pivot_root process_madvise
    query_module quotactl reboot request_key set_mempolicy setdomainname sethostname setns
    settimeofday swapoff swapon sysfs syslog umount2 unshare uselib userfaultfd ustat vhangup
    """.split()
# Of profiles for kernels before 4.8, and of narrower ones.
REFUSED_BY_OLD_DOCKER = REFUSED_BY_DOCKER + ["process_vm_readv", "process_vm_writev", "ptrace"]
NEW_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
SYSTEMD_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
MAX_FAMILY = 46


def missing():
    """Why containers cannot be made here; empty if they can."""
    if seccomp is None:
        return "python3-seccomp is not installed"
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed"
    if not places.can_unshare():
        return "no right to make network namespaces (neither root nor user namespaces)"
    return ""


def refuse(rules, name, *arguments, error=errno.EPERM):
    # Some names are of other architectures.
    with contextlib.suppress(OSError, RuntimeError):
        rules.add_rule(seccomp.ERRNO(error), name, *arguments)


def docker_filter(refused=None):
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in refused or REFUSED_BY_DOCKER:
        refuse(rules, name)
    for flag in NEW_NAMESPACES:
        refuse(rules, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    refuse(rules, "clone3", error=errno.ENOSYS)
    refuse(rules, "socket", seccomp.Arg(0, seccomp.EQ, socket.AF_VSOCK))
    return rules


def systemd_calls(group):
    """The system calls of a group of systemd's, such as @system-service."""
    listed = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True,
                            text=True, check=True).stdout
    names = [line.strip() for line in listed.splitlines() if line.startswith("    ")]
    found = set()
    for name in names:
        if name.startswith("@"):
            found |= systemd_calls(name)
        elif not name.startswith("#"):
            found.add(name)
    return found


def systemd_filter():
    """SystemCallFilter=@system-service, RestrictAddressFamilies= and MemoryDenyWriteExecute=."""
    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for name in systemd_calls("@system-service") - {"socket", "mmap", "mprotect", "pkey_mprotect"}:
        with contextlib.suppress(OSError, RuntimeError):
            rules.add_rule(seccomp.ALLOW, name)
    for family in SYSTEMD_FAMILIES:
        rules.add_rule(seccomp.ALLOW, "socket", seccomp.Arg(0, seccomp.EQ, family))
    executable, writable = mmap.PROT_EXEC, mmap.PROT_WRITE
    for allowed in (0, executable, writable):
        rules.add_rule(seccomp.ALLOW, "mmap",
                       seccomp.Arg(2, seccomp.MASKED_EQ, executable | writable, allowed))
    rules.add_rule(seccomp.ALLOW, "mprotect", seccomp.Arg(2, seccomp.MASKED_EQ, executable, 0))
    return rules


def write_filter(rules, path):
    with open(path, "wb") as file:
        rules.export_bpf(file)
    return path


# An unprivileged user, no capabilities, everything read-only, /dev with nothing but what every
# container has (null, zero, shm, pts ...).
NARROW = ["bwrap", "--unshare-user", "--uid", str(UID), "--gid", str(UID), "--unshare-pid",
          "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL", "--die-with-parent"]


def container(name, space, filter_file, root="/", more=()):
    """A place in which commands run as in a container, in the network namespace `space`."""
    enter = [*space.enter(), "sh", "-c", f'exec "$@" {FILTER_FD}<"$0"', str(filter_file), *NARROW,
             "--ro-bind", str(root), "/", "--dev", "/dev", "--proc", "/proc",
             "--seccomp", str(FILTER_FD), *more]
    return places.Place(name, enter, "127.0.0.1", "::1", "uwarp_lo")
