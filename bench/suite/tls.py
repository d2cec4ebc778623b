# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""uwarp with UWARP_TLS=psk beside plain TLS over TCP by the same OpenSSL, and beside itself without TLS."""

import atexit
import pathlib
import secrets
import shutil
import tempfile

from .campaign import Campaign
from .contenders import Contenders
from .groups import KIB, MIB, Group, Row, human

SECONDS = 0.4
LATENCY = 1.2    # of plain TLS, at most
STREAM = 0.85    # at least
CONNECTS = 0.7   # at least
IDLE_KIB = 40    # per connection, rings included, at most


class Catalogue:
    """Both by TCP."""

    def __init__(self, build):
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder)  # measures outlive this object
        keys = pathlib.Path(folder) / "keys"
        keys.write_text(f"bench:{secrets.token_hex(32)}\n")
        keys.chmod(0o600)
        self._plain = Contenders(build, SECONDS, 1.0)
        self._tls = self._plain.under(UWARP_TLS="psk", UWARP_TLS_PSK=str(keys))

    def groups(self):
        for size in (8, 4 * KIB):
            group = Group(f"half round trip {human(size)} by TLS", "us", "loopback")
            raw = group.add("plain TLS", "raw", self._plain.raw_tls("ping-pong", "typical_us", "--size", size))
            group.add("without TLS", "check", self._plain.perftest_latency("ib_send_lat", size))
            ours = group.add("ib_send_lat", "uwarp", self._tls.perftest_latency("ib_send_lat", size))
            group.rows.append(Row(f"ib_send_lat {human(size)} by TLS", ours, [raw],
                                  LATENCY if size == 8 else None))
            yield group
        for size in (64 * KIB, MIB):
            group = Group(f"stream {human(size)} by TLS", "MB/s", "loopback")
            raw = group.add("plain TLS", "raw", self._plain.raw_tls("stream", "mb_per_second", "--size", size))
            group.add("without TLS", "check", self._plain.perftest_bandwidth("ib_write_bw", size))
            ours = group.add("ib_write_bw", "uwarp", self._tls.perftest_bandwidth("ib_write_bw", size))
            group.rows.append(Row(f"ib_write_bw {human(size)} by TLS", ours, [raw], STREAM))
            yield group
        group = Group("connections per second by TLS", "/s", "loopback")
        raw = group.add("plain TLS", "raw", self._plain.raw_tls("connects", "per_second", "--count", 500))
        options = ("--count", 500, "--window", 1)
        group.add("without TLS", "check", self._plain.verbs("connects", "per_second", *options))
        ours = group.add("rdma_cm", "uwarp", self._tls.verbs("connects", "per_second", *options))
        group.rows.append(Row("rdma_cm connects by TLS", ours, [raw], CONNECTS))
        yield group
        group = Group("memory per idle connection by TLS", "KiB", "loopback")
        options = ("--count", 500, "--depth", 16)
        group.add("without TLS", "check", self._plain.verbs("qps", "kib_per_qp", *options))
        ours = group.add("with TLS", "uwarp", self._tls.verbs("qps", "kib_per_qp", *options))
        group.rows.append(Row("memory per idle connection by TLS", ours, [], absolute=IDLE_KIB))
        yield group


def measure(groups, rounds, limit_seconds, say):
    done = Campaign(groups, say)
    done.run(rounds, limit_seconds)
    return done
