# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Rows of one host: uwarp over shared memory, beside what shared memory can do, plain TCP, UCX, and
uwarp over TCP.

They are added to the groups of the rows over TCP, whose contenders they are compared with.
"""

from .contenders import with_busy_core
from .groups import KIB, MIB, ONE_HOST, Row, human

TRANSPORTS = "posix,cma,self"  # of UCX
UCX = "UCX posix, cma"
RING, PULL, COPY = "raw ring", "raw pull", "raw copy"
TOOLS = {"ib_write_bw": "Writes", "ib_read_bw": "Reads", "ib_send_bw": "Sends"}
UCX_STREAMS = {"ib_write_bw": "ucp_put_bw", "ib_send_bw": "tag_bw"}
SMALLEST_PULL = 4 * KIB  # below, a system call is much dearer than two copies
LATENCY_LIMITS = {8: (2.0, 0.25), 4 * KIB: (1.6, 0.5), 64 * KIB: (None, 0.6)}
MOST_QUEUE_PAIRS = 1000  # with 10,000 more there would be a socket in TIME_WAIT on every port
DIRECT_LIMITS = {8: 1.8, 4 * KIB: 1.5, 64 * KIB: 1.2}  # against the copy alone
BUFFERS = 16  # of a megabyte each: more than the second level's cache holds


def by_memory(label):
    """The label of what `label` is over TCP."""
    return f"{label}, shared memory"


class OneHost:
    """Adds contenders and rows to a group. Labels of contenders over TCP, which are in the group
    already, come as arguments or are known."""

    def __init__(self, contenders, ucx):
        self._make = contenders.under(UWARP_SHM="1")
        self._over_tcp = contenders
        self._ucx = ucx

    def _row(self, group, name, *arguments, **more):
        group.rows.append(Row(f"one host: {name}", *arguments, section=ONE_HOST, **more))

    def _add(self, group, label, measure, plot=None):
        return group.add(by_memory(label), "uwarp", measure, plot)

    def _add_ucx(self, group, measure, label=UCX, plot=None):
        """Labels to be shown beside."""
        return [group.add(label, "ucx_memory", measure, plot)] if self._ucx else []

    # ---- latency

    def latency(self, group, size, tcp):
        """Half round trips. `tcp`: labels of plain TCP."""
        if size not in LATENCY_LIMITS:
            return
        to_raw, to_tcp = LATENCY_LIMITS[size]
        chart = "one host latency"
        raw = [group.add(label, "raw", self._make.raw_memory("ping-pong", "typical_us", "--size",
                                                             size, *options), (chart, label, size))
               for label, options in ((RING, ()), (PULL, ("--pull",)))
               if label == RING or size >= SMALLEST_PULL]
        sends = self._add(group, "ib_send_lat", self._make.perftest_latency("ib_send_lat", size),
                          (chart, by_memory("ib_send_lat"), size))
        ucx = self._add_ucx(group, self._make.ucx("tag_lat", size, "typical",
                                                  transports=TRANSPORTS), plot=(chart, UCX, size))
        name = f"{human(size)} Send, half round trip"
        self._row(group, f"{name}, against raw memory", sends, raw, to_raw,
                  beside=["ib_send_lat", *ucx], quick=size == 8)
        self._row(group, f"{name}, against raw TCP", sends, tcp, to_tcp, beside=[],
                  quick=size == 64 * KIB)
        reads = self._add(group, "ib_read_lat",
                          self._make.perftest_latency("ib_read_lat", size, halved=True))
        alone = group.add(COPY, "raw",
                          self._make.raw_memory("read", "typical_us", "--size", size))
        get = self._add_ucx(group, self._make.ucx("ucp_get", size, "typical",
                                                  transports=TRANSPORTS), f"{UCX}, ucp_get")
        self._row(group, f"{human(size)} Read, half, against a raw copy", reads, [alone],
                  DIRECT_LIMITS[size], beside=["ib_read_lat", *get])

    def memory_latency(self, group, size, tcp):
        """Writes to and fro, each side looking at its memory. `tcp`: labels of plain TCP, for 8 B."""
        writes = self._add(group, "ib_write_lat", self._make.perftest_latency("ib_write_lat", size))
        name = f"{human(size)} Write, half round trip"
        if tcp:
            self._row(group, f"{name}, spinning on memory", writes, tcp, 0.35,
                      beside=["ib_write_lat"])
        raw = group.add(COPY, "raw",
                        self._make.raw_memory("write-ping-pong", "typical_us", "--size", size))
        put = self._add_ucx(group, self._make.ucx("ucp_put_lat", size, "typical",
                                                  transports=TRANSPORTS), f"{UCX}, ucp_put_lat")
        self._row(group, f"{name}, against a raw copy", writes, [raw], DIRECT_LIMITS[size],
                  beside=put, quick=size == 8)

    def wake_up(self, group):
        label = "ibv_get_cq_event"
        waits = self._add(group, label, self._make.verbs("wake-up", "typical_us", "--wait", "block"))
        self._row(group, "8 B Send, half round trip, by events, against TCP", waits, [label], 1.0,
                  beside=[])

    # ---- streams

    def _raw_streams(self, group, size, *options, what="", plotted=False):
        """Labels of the ring and of the pull."""
        return [group.add(f"{label}{what}", "raw",
                          self._make.raw_memory("stream", "mb_per_second", "--size", size, *options,
                                                *how),
                          ("one host bandwidth", label, size) if plotted else None)
                for label, how in ((RING, ()), (PULL, ("--pull",)))]

    def stream(self, group, size, tcp):
        """`tcp`: labels of plain TCP. Sizes without a target have Writes only."""
        chart = "one host bandwidth"
        aimed = size in (64 * KIB, MIB)
        raw = self._raw_streams(group, size, plotted=True)
        for tool, operations in TOOLS.items() if aimed else [("ib_write_bw", "Writes")]:
            ours = self._add(group, tool, self._make.perftest_bandwidth(tool, size),
                             (chart, by_memory(tool), size))
            ucx = []
            if aimed and tool in UCX_STREAMS:
                test = UCX_STREAMS[tool]
                ucx = self._add_ucx(group, self._make.ucx_bandwidth(size, test=test,
                                                                    transports=TRANSPORTS),
                                    f"{UCX}, {test}", (chart, f"{UCX}, {test}", size))
            name = f"{human(size)} {operations}"
            self._row(group, f"{name}, against raw memory", ours, raw if size != MIB else raw[1:],
                      0.8 if aimed else None, beside=[tool, *ucx], needs=raw,
                      quick=size == MIB and tool == "ib_write_bw")
            if aimed:
                self._row(group, f"{name}, against raw TCP", ours, tcp, 1.5, beside=[])

    def buffers_in_turn(self, group, size, congestion):
        """The same work where each message has another buffer than the one before it."""
        what = f", {BUFFERS} buffers"
        options = ("--size", size, "--buffers", BUFFERS)
        name, option = congestion
        tcp = group.add(f"raw {name}{what}", "raw",
                        self._make.raw("stream", "mb_per_second", *options, "--read", size,
                                       congestion=option))
        pull = group.add(f"{PULL}{what}", "raw",
                         self._make.raw_memory("stream", "mb_per_second", *options, "--pull"))
        for operation in ("write", "read", "send"):
            rate = ("rate", "mb_per_second", "--op", operation, "--depth", BUFFERS, "--peer-polls",
                    *options)
            label = f"{operation}{what}"
            beside = group.add(label, "uwarp", self._over_tcp.verbs(*rate))
            ours = self._add(group, label, self._make.verbs(*rate))
            row = f"{human(size)} {operation.capitalize()}s{what} in turn"
            self._row(group, f"{row}, against a raw pull", ours, [pull], 0.8, beside=[beside])
            self._row(group, f"{row}, against raw TCP", ours, [tcp], 1.0, beside=[])

    def duplex(self, group, size, tcp):
        both = self._add(group, "ib_write_bw -b",
                         self._make.perftest_bandwidth("ib_write_bw", size, "-b"))
        self._row(group, f"{human(size)} Writes in both directions", both, tcp, 1.2,
                  beside=["ib_write_bw -b"])

    # ---- small messages

    def messages(self, group):
        """The label over TCP is that of Catalogue._messages()."""
        batch = 32
        ring = group.add(f"{RING}, {batch} at once", "raw",
                         self._make.raw_memory("messages", "per_second", "--batch", batch))
        ucx = self._add_ucx(group, self._make.ucx("tag_bw", 8, "rate", count=500000,
                                                  transports=TRANSPORTS))
        for operation in ("write", "send"):
            label = f"{operation}, depth 128"
            ours = self._add(group, label, self._make.verbs("rate", "per_second", "--op", operation))
            self._row(group, f"8 B {operation.capitalize()}s, depth 128", ours, [ring],
                      absolute=25e6, beside=[label, *ucx], quick=operation == "write")

    def reads(self, group, pipelined):
        """`pipelined`: labels of plain TCP with as many requests outstanding."""
        ours = self._add(group, "read",
                         self._make.verbs("rate", "per_second", "--op", "read", "--depth", 16,
                                          "--list", 16, "--peer-polls"))
        self._row(group, "8 B Reads, 16 at a time", ours, pipelined, absolute=5e6, beside=["read"])

    # ---- many queue pairs

    def queue_pairs(self, group, count, over_tcp, raw):
        """All of them active. Labels: of uwarp over TCP and of plain TCP."""
        if count > MOST_QUEUE_PAIRS:
            return
        ours = self._add(group, over_tcp,
                         self._make.verbs("qps", "per_second", "--count", count, "--depth", 16,
                                          "--all"),
                         ("queue pairs", by_memory("uwarp, all active"), count))
        self._row(group, f"{count} queue pairs, all active", ours, raw,
                  1.2 if count >= 256 else None, beside=[over_tcp], quick=count == 256)

    def idle_memory(self, group):
        ours = self._add(group, "rings of 16",
                         self._make.verbs("qps", "kib_per_qp", "--count", 1000, "--depth", 16))
        self._row(group, "memory per idle queue pair", ours, [], absolute=24,
                  beside=["rings of 16"])

    def connects(self, group, window):
        ours = self._add(group, "rdma_cm",
                         self._make.verbs("connects", "per_second", "--count", 500, "--window",
                                          window))
        self._row(group, f"connections, {window} at a time, against TCP", ours, ["rdma_cm"], 0.9,
                  beside=[])

    # ---- few cores

    def pinned_latency(self, group, size, what, *cores):
        ours = self._add(group, "ib_send_lat",
                         self._make.on_cores(*cores).perftest_latency("ib_send_lat", size))
        self._row(group, f"{human(size)} Send, half round trip, {what}, against TCP", ours,
                  ["ib_send_lat"], 1.0, beside=[])

    def busy_latency(self, group):
        self._busy(group, "ib_send_lat", self._make.perftest_mean_latency("ib_send_lat", 8),
                   "8 B Send, half round trip")

    def busy_stream(self, group):
        self._busy(group, "ib_write_bw", self._make.perftest_bandwidth("ib_write_bw", 64 * KIB),
                   "64 KiB Writes")

    def _busy(self, group, label, measure, work):
        ours = self._add(group, label, with_busy_core(measure))
        self._row(group, f"{work}, a busy core, against TCP", ours, [label], 1.0, beside=[])
