# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Packets of a test in a file, for tshark to judge."""

import os
import shutil
import subprocess
import time

import pytest

import places

needs_capture = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("dumpcap") or not shutil.which("tshark"),
    reason="capturing needs root and tshark")


def tshark(path, *arguments, seconds=places.GUARD_SECONDS):
    """What it says of a file. iWARP is known by its looks only. Those have to come first, as the port
    of a test may be one that another protocol is registered for (22222: rtpproxy)."""
    command = ["tshark", "-n", "-o", "tcp.try_heuristic_first:TRUE", "-r", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds).stdout


class Capture:
    """dumpcap on the server's interface, for one port."""

    def __init__(self, start, link, port, path):
        self.path = path
        interface = link.server.device.removeprefix("uwarp_")
        self.process = start(["dumpcap", "-q", "-i", interface, "-f", f"tcp port {port}", "-s", "0",
                              "-w", str(path)], link.server, uwarp=False)
        # The file appears only once the capture runs.
        places.wait_until(lambda: path.exists() or not self.process.running(),
                          lambda: str(self.process))
        places.wait_until(lambda: path.stat().st_size > 0, lambda: str(self.process))

    def end(self):
        # dumpcap reads in blocks: give it the time to see the last packets.
        size = -1
        while size != self.path.stat().st_size:
            size = self.path.stat().st_size
            time.sleep(0.6)
        self.process.send(2)
        self.process.wait()
