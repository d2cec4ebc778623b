# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The rows of the table: what is measured in which of them, against what, with which target.

Rows over TCP are here. Those of one host are in the same groups, so that all of a group are measured
beside each other: see one_host.py.
"""

import os
import pathlib

from .contenders import BULK_BYTES_VETH, available, with_busy_core
from .datagrams import Datagrams
from .groups import KIB, MIB, Group, Row, human
from .one_host import OneHost

READ_SIZES = (64 * KIB, 256 * KIB, MIB)
QUEUE_PAIR_COUNTS = (1, 16, 256, 1000, 10000)


class Catalogue:
    """Builds all groups from what is installed."""

    def __init__(self, contenders, veth=True):
        self._make = contenders
        self._veth = veth
        self._ucx = available("ucx_perftest")
        self._one_host = OneHost(contenders, self._ucx)
        self._libfabric = available("fi_pingpong")
        self._system = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()

    def congestions(self):
        """Label and option of each congestion control that raw TCP is tried with."""
        return [(self._system, "")] + ([("reno", "reno")] if self._system != "reno" else [])

    def groups(self):
        yield from map(self._latency, (8, 256, 4 * KIB, 64 * KIB))
        yield self._memory_latency()
        yield self._large_memory_latency()
        yield from map(self._stream, (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB))
        yield from (self._duplex(size) for size in (64 * KIB, MIB))
        yield self._messages()
        yield self._reads()
        yield self._sleeping_target()
        yield self._wake_ups()
        yield from (self._connects(window) for window in (1, 32))
        yield from Datagrams(self._make).groups()
        # Leaves some 100,000 sockets in TIME_WAIT, which slow down later connections.
        yield self._queue_pairs()
        yield self._idle_memory()
        first, *others = sorted(os.sched_getaffinity(0))
        for size in (8, 64 * KIB):
            yield self._pinned_latency(size, "one core for both", first, first)
            if others:
                yield self._pinned_latency(size, "a core for each", first, others[0])
        yield self._busy_latency()
        yield self._busy_stream()
        if self._veth:
            for mtu in (1500, 9000):
                yield from self._on_veth(mtu)

    # ---- latency

    def _raw_ping_pong(self, group, size, *options, what="", plot=None, make=None):
        make = make or self._make
        return [group.add(f"raw {name}{what}", "raw",
                          make.raw("ping-pong", "typical_us", "--size", size, *options,
                                   congestion=option), plot)
                for name, option in self.congestions()]

    def _latency(self, size):
        group = Group(f"half round trip {human(size)}", "us", "loopback")
        raw = self._raw_ping_pong(group, size, plot=("latency", "raw TCP", size))
        group.add("ib_send_lat", "uwarp", self._make.perftest_latency("ib_send_lat", size),
                  ("latency", "ib_send_lat", size))
        group.rows.append(Row(f"ib_send_lat {human(size)}", "ib_send_lat", raw, 1.15,
                              quick=size in (8, 64 * KIB)))
        # Of a Read only the way back is long.
        there_short = raw if size == 8 else self._raw_ping_pong(
            group, size, "--request", 8, what=", asked for by 8 B",
            plot=("latency", "raw TCP, asked for by 8 B", size))
        group.add("ib_read_lat", "uwarp",
                  self._make.perftest_latency("ib_read_lat", size, halved=True),
                  ("latency", "ib_read_lat", size))
        group.rows.append(Row(f"ib_read_lat {human(size)}", "ib_read_lat", there_short, 1.15,
                              beside=None if size == 8 else [], quick=size in (8, 64 * KIB)))
        if self._ucx:
            group.add("UCX", "ucx", self._make.ucx("tag_lat", size, "typical"),
                      ("latency", "UCX tcp", size))
        if self._libfabric:
            group.add("libfabric", "libfabric", self._make.libfabric(size),
                      ("latency", "libfabric tcp", size))
        self._one_host.latency(group, size, raw)
        return group

    def _memory_latency(self):
        group = Group("half round trip 8 B, spinning on memory", "us", "loopback")

        def raw_figures(figure, what=""):
            return [group.add(f"raw {name}{what}", "raw",
                              self._make.raw("memory-ping-pong", figure, "--size", 8,
                                             congestion=option))
                    for name, option in self.congestions()]

        raw = raw_figures("typical_us")
        group.add("ib_write_lat", "uwarp", self._make.perftest_latency("ib_write_lat", 8),
                  ("latency", "ib_write_lat", 8))
        group.rows.append(Row("ib_write_lat 8 B", "ib_write_lat", raw, 1.25, quick=True))
        self._one_host.memory_latency(group, 8, raw)
        means = raw_figures("average_us", ", mean")
        group.add("ib_write_lat, mean", "uwarp", self._make.perftest_mean_latency("ib_write_lat", 8))
        group.rows.append(Row("ib_write_lat 8 B, mean", "ib_write_lat, mean", means))
        return group

    def _large_memory_latency(self):
        group = Group("half round trip 64 KiB, spinning on memory", "us", "loopback")
        self._one_host.memory_latency(group, 64 * KIB, [])
        return group

    # ---- bandwidth

    def _raw_streams(self, group, size, mode="stream", plot=None, reads=READ_SIZES, what=""):
        return [group.add(f"raw {name}{what}, reads of {human(read)}", "raw",
                          self._make.raw(mode, "mb_per_second", "--size", size, "--read", read,
                                         congestion=option), plot)
                for name, option in self.congestions() for read in reads]

    def _stream(self, size):
        group = Group(f"stream {human(size)}", "MB/s", "loopback")
        aimed = size in (64 * KIB, MIB)
        raw = self._raw_streams(group, size, plot=("bandwidth", "raw TCP", size),
                                reads=READ_SIZES if aimed else (256 * KIB,))
        for tool in ("ib_write_bw", "ib_read_bw", "ib_send_bw"):
            group.add(tool, "uwarp", self._make.perftest_bandwidth(tool, size),
                      ("bandwidth", tool, size))
            group.rows.append(Row(f"{tool} {human(size)}", tool, raw, 0.9 if aimed else None,
                                  quick=aimed and tool != "ib_send_bw"))
            if aimed:
                label = group.add(f"{tool} with CRC", "uwarp",
                                  self._make.perftest_bandwidth(tool, size, crc=True))
                group.rows.append(Row(f"{label} {human(size)}", label, [tool], 0.7, beside=[],
                                      quick=size == MIB and tool == "ib_write_bw"))
        if self._ucx:
            group.add("UCX", "ucx", self._make.ucx_bandwidth(size), ("bandwidth", "UCX tcp", size))
        if aimed and available("iperf3"):
            group.add("iperf3", "check", self._make.iperf3(size))
        if aimed and available("qperf"):
            group.add("qperf", "check", self._make.qperf(size))
        self._one_host.stream(group, size, raw)
        if size == MIB:
            self._one_host.buffers_in_turn(group, size, self.congestions()[-1])
        return group

    def _duplex(self, size):
        group = Group(f"both directions {human(size)}", "MB/s", "loopback")
        reads = (256 * KIB, MIB)
        raw = self._raw_streams(group, size, "duplex", reads=reads)
        group.add("ib_write_bw -b", "uwarp",
                  self._make.perftest_bandwidth("ib_write_bw", size, "-b"))
        group.rows.append(Row(f"ib_write_bw -b {human(size)}", "ib_write_bw -b", raw, 0.9))
        # A queue pair has one connection, whose socket the kernel locks over each call.
        one = self._raw_streams(group, size, "both-ways", reads=reads,
                                what=" on one connection")
        group.rows.append(Row(f"ib_write_bw -b {human(size)}, against one connection",
                              "ib_write_bw -b", one))
        self._one_host.duplex(group, size, raw)
        return group

    # ---- small messages

    def _raw_batch(self, group, batch):
        return [group.add(f"raw {name}, {batch} per send", "raw",
                          self._make.raw("messages", "per_second", "--size", 8, "--batch", batch,
                                         congestion=option))
                for name, option in self.congestions()]

    def _messages(self):
        group = Group("8 B messages", "/s", "loopback")
        single = self._raw_batch(group, 1)
        batched = self._raw_batch(group, 16) + self._raw_batch(group, 64)
        for operation in ("write", "send"):
            label = group.add(f"{operation}, depth 128", "uwarp",
                              self._make.verbs("rate", "per_second", "--op", operation))
            name = f"8 B {operation.capitalize()}s per second"
            group.rows.append(Row(f"{name}, against one per send", label, single, 1.0, 5e6,
                                  quick=True))
            group.rows.append(Row(f"{name}, against batched sends", label, batched, beside=[]))
        if self._ucx:
            group.add("UCX", "ucx", self._make.ucx("tag_bw", 8, "rate", count=500000))
        self._one_host.messages(group)
        return group

    def _reads(self):
        group = Group("8 B requests with answers, 16 outstanding", "/s", "loopback")
        batched = self._raw_batch(group, 16)
        pipelined = [group.add(f"raw {name}, 16 outstanding", "raw",
                               self._make.raw("pipeline", "per_second", "--size", 8, "--batch", 16,
                                              congestion=option))
                     for name, option in self.congestions()]
        for operation in ("read", "atomic"):
            options = ("--op", operation, "--depth", 16, "--peer-polls")
            whole = group.add(operation, "uwarp",
                              self._make.verbs("rate", "per_second", *options, "--list", 16))
            parts = group.add(f"{operation}, lists of 4", "uwarp",
                              self._make.verbs("rate", "per_second", *options, "--list", 4))
            name = f"8 B {operation}s, 16 outstanding"
            group.rows.append(Row(f"{name}, against batched sends", whole, batched, 0.5,
                                  quick=operation == "read"))
            group.rows.append(Row(f"{name}, against requests and answers", whole, pipelined, 0.5))
            group.rows.append(Row(f"{name}, lists of 4, against requests and answers", parts,
                                  pipelined, 0.5))
        self._one_host.reads(group, pipelined)
        return group

    def _sleeping_target(self):
        group = Group("target sleeps or polls", "/s", "loopback")
        for operation, depth in (("write", 128), ("read", 16), ("atomic", 16)):
            options = ("--op", operation, "--depth", depth)
            polls = group.add(f"{operation}, target polls", "uwarp",
                              self._make.verbs("rate", "per_second", *options, "--peer-polls"))
            sleeps = group.add(f"{operation}, target sleeps", "uwarp",
                               self._make.verbs("rate", "per_second", *options))
            group.rows.append(Row(f"8 B {operation}s, target sleeps", sleeps, [polls], 0.8))
        return group

    # ---- events

    def _wake_ups(self):
        group = Group("half round trip 8 B, by events", "us", "loopback")
        raw = self._raw_ping_pong(group, 8, "--wait", "block", what=", block")
        for label, spin_us, limit in (("ib_send_lat -e", None, 1.15),
                                      ("ib_send_lat -e, asleep at once", 0, None)):
            group.add(label, "uwarp",
                      self._make.perftest_latency("ib_send_lat", 8, "-e", count=5000,
                                                  spin_us=spin_us))
            group.rows.append(Row(label.replace("-e", "-e 8 B"), label, raw, limit,
                                  quick=limit is not None))
        if self._ucx:
            group.add("UCX", "ucx", self._make.ucx("tag_lat", 8, "typical", "-E", "sleep",
                                                   count=5000))
        for wait, limit in (("block", 1.15), ("poll", 2.0), ("epoll", 2.0)):
            label = {"block": "ibv_get_cq_event", "poll": "poll() on the channel",
                     "epoll": "epoll on the channel"}[wait]
            group.add(label, "uwarp", self._make.verbs("wake-up", "typical_us", "--wait", wait))
            group.rows.append(Row(f"{label} 8 B", label, raw, limit))
        self._one_host.wake_up(group)
        return group

    # ---- many queue pairs

    def _queue_pairs(self):
        group = Group("many queue pairs", "/s", "loopback")
        options = ("--size", 8, "--batch", 16)
        for count in QUEUE_PAIR_COUNTS:
            for activity in (("one", "all") if count > 1 else ("one",)):
                flag = ["--all"] if activity == "all" else []
                chart = f"TCP, {activity} active"
                raw = [group.add(f"raw {name}, {count} sockets, {activity} active", "raw",
                                 self._make.raw("sockets", "per_second", "--count", count, *flag,
                                                *options, congestion=option),
                                 ("queue pairs", f"raw {chart}", count))
                       for name, option in self.congestions()[-1:]]
                label = group.add(f"{count} QPs, {activity} active", "uwarp",
                                  self._make.verbs("qps", "per_second", "--count", count,
                                                   "--depth", 16, *flag),
                                  ("queue pairs", f"uwarp, {activity} active", count))
                if activity == "all":
                    group.rows.append(Row(f"{count} QPs, all active", label, raw, 0.8,
                                          quick=count == 256))
                    self._one_host.queue_pairs(group, count, label, raw)
                elif count > 1:
                    group.rows.append(Row(f"{count} QPs, one active, against 1 QP", label,
                                          ["1 QPs, one active"], 0.8, quick=count == 256))
                else:
                    group.rows.append(Row("1 QP, one batch outstanding", label, raw))
        return group

    def _idle_memory(self):
        group = Group("memory per idle queue pair", "KiB", "loopback")
        # The limit is for what there is beside the rings, which rings of one entry come near.
        for depth, limit in ((1, 16), (16, None)):
            label = group.add(f"rings of {depth}", "uwarp",
                              self._make.verbs("qps", "kib_per_qp", "--count", 1000,
                                               "--depth", depth))
            group.rows.append(Row(f"memory per idle QP, rings of {depth} included", label, [],
                                  absolute=limit))
        self._one_host.idle_memory(group)
        return group

    def _connects(self, window):
        group = Group(f"connections per second, {window} at a time", "/s", "loopback")
        options = ("--count", 500, "--window", window)
        raw = [group.add(f"raw {name}", "raw",
                         self._make.raw("connects", "per_second", *options, congestion=option))
               for name, option in self.congestions()[-1:]]
        group.add("rdma_cm", "uwarp", self._make.verbs("connects", "per_second", *options))
        group.rows.append(Row(f"rdma_cm connects, {window} at a time", "rdma_cm", raw, 0.7,
                              quick=window == 32))
        self._one_host.connects(group, window)
        return group

    # ---- few cores

    def _pinned_latency(self, size, what, *cores):
        """As launchers of parallel programs and numactl start them."""
        group = Group(f"half round trip {human(size)}, {what}", "us", "loopback")
        make = self._make.on_cores(*cores)
        # An end that spins keeps its core from the other one.
        wait = "block" if cores[0] == cores[1] else "spin"
        raw = self._raw_ping_pong(group, size, "--wait", wait, make=make)
        group.add("ib_send_lat", "uwarp", make.perftest_latency("ib_send_lat", size))
        group.rows.append(Row(f"ib_send_lat {human(size)}, {what}", "ib_send_lat", raw, 1.15))
        self._one_host.pinned_latency(group, size, what, *cores)
        return group

    def _degradation(self, group, name, idle, busy):
        """`idle` and `busy`: labels of uwarp and of raw TCP. The ratio may not be worse than on an
        idle machine."""
        group.rows.append(Row(name, busy[0], [busy[1]], idle, needs=idle))

    def _busy_latency(self):
        group = Group("half round trip 8 B, one of two cores busy (means)", "us", "loopback")
        option = self.congestions()[-1][1]
        count = 5000
        measures = [
            ("ib_send_lat", "uwarp", self._make.perftest_mean_latency("ib_send_lat", 8)),
            ("raw", "raw", self._make.raw("ping-pong", "average_us", congestion=option))]
        if self._ucx:
            measures.append(("UCX", "ucx", self._make.ucx("tag_lat", 8, "average", count=count)))
        if self._libfabric:
            measures.append(("libfabric", "libfabric", self._make.libfabric(8, count)))
        for label, kind, measure in measures:
            if kind in ("raw", "uwarp"):
                group.add(f"{label}, idle", kind, measure)
            group.add(label, kind, with_busy_core(measure))
        self._degradation(group, "ib_send_lat 8 B, one core busy",
                          ("ib_send_lat, idle", "raw, idle"), ("ib_send_lat", "raw"))
        self._one_host.busy_latency(group)
        return group

    def _busy_stream(self):
        size = 64 * KIB
        group = Group("stream 64 KiB, one of two cores busy", "MB/s", "loopback")
        option = self.congestions()[-1][1]
        measures = [("ib_write_bw", "uwarp", self._make.perftest_bandwidth("ib_write_bw", size)),
                    ("raw", "raw", self._make.raw("stream", "mb_per_second", "--size", size,
                                                  congestion=option))]
        if self._ucx:
            measures.append(("UCX", "ucx", self._make.ucx_bandwidth(size)))
        for label, kind, measure in measures:
            if kind != "ucx":
                group.add(f"{label}, idle", kind, measure)
            group.add(label, kind, with_busy_core(measure))
        self._degradation(group, "ib_write_bw 64 KiB, one core busy",
                          ("ib_write_bw, idle", "raw, idle"), ("ib_write_bw", "raw"))
        self._one_host.busy_stream(group)
        return group

    # ---- two network namespaces

    def _on_veth(self, mtu):
        where = f"veth MTU {mtu}"
        latency = Group(f"half round trip 8 B, {where}", "us", f"veth {mtu}")
        raw = self._raw_ping_pong(latency, 8)
        latency.add("ib_send_lat", "uwarp", self._make.perftest_latency("ib_send_lat", 8))
        latency.rows.append(Row(f"ib_send_lat 8 B, {where}", "ib_send_lat", raw, 1.15,
                                quick=mtu == 1500))
        if self._ucx:
            latency.add("UCX", "ucx", self._make.ucx("tag_lat", 8, "typical"))
        yield latency
        for size in (64 * KIB, MIB):
            stream = Group(f"stream {human(size)}, {where}", "MB/s", f"veth {mtu}")
            raw = self._raw_streams(stream, size, reads=(256 * KIB, MIB))
            for tool in ("ib_write_bw", "ib_send_bw"):
                stream.add(tool, "uwarp", self._make.perftest_bandwidth(tool, size))
                quick = mtu == 1500 and size == MIB and tool == "ib_write_bw"
                stream.rows.append(Row(f"{tool} {human(size)}, {where}", tool, raw, 0.9,
                                       quick=quick))
            if self._ucx:
                stream.add("UCX", "ucx", self._make.ucx_bandwidth(size, BULK_BYTES_VETH))
            yield stream
