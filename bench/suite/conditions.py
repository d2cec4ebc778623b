# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""What figures have to be read with: the machine and the source they are of."""

import os
import pathlib
import re
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def here():
    """Of this machine at this moment."""
    congestion = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return {"cpus": len(os.sched_getaffinity(0)), "cpu_model": cpu_model(),
            "kernel": numeric(os.uname().release), "congestion": congestion, "commit": commit(),
            "date": time.strftime("%Y-%m-%d")}


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def numeric(release):
    """The version of a kernel without what its builder has added, which says nothing elsewhere."""
    return re.match(r"[\d.]*\d|", release)[0] or "unknown"


def commit():
    """Its short hash, with -dirty if anything but recorded figures differs from it; None where it
    cannot be told, as in a release's tarball."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        if head.returncode != 0:
            return None
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".",
                       ":!docs/benchmarks")
    except OSError:
        return None
    return head.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")


def _git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True,
                          check=False)
