# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Rows of datagrams: UD queue pairs in the roce persona, over TCP and over shared memory, beside plain
UDP and connected queue pairs."""

from .groups import DATAGRAMS, KIB, Group, Row, human

RAW = "raw UDP"
CARRIERS = {"TCP": "0", "shared memory": "1"}  # name -> UWARP_SHM
PROCESSES = 4  # that many receivers are spread over
CROWDS = (32, 1000)


class Datagrams:
    """Builds the groups."""

    def __init__(self, contenders):
        self._raw = contenders.raw_udp
        self._makes = {name: contenders.under(UWARP_PERSONA="roce", UWARP_SHM=setting)
                       for name, setting in CARRIERS.items()}

    def groups(self):
        yield self._latency()
        yield self._rate("rate of 8 B datagrams", "/s", 8, "per_second", None, 5e6)
        yield self._rate("stream of 4 KiB datagrams", "MB/s", 4 * KIB, "mb_per_second", 1.0)
        yield from map(self._crowd, CROWDS)

    def _row(self, group, name, *arguments, **more):
        group.rows.append(Row(f"datagrams: {name}", *arguments, section=DATAGRAMS, **more))

    def _latency(self):
        group = Group("half round trip of 8 B datagrams", "us", "loopback")
        raw = group.add(RAW, "raw", self._raw("ping-pong", "typical_us"))
        for carrier, make in self._makes.items():
            connected, ours = (group.add(f"{kind}, {carrier}", "uwarp",
                                         make.perftest_latency("ib_send_lat", 8, "-c", kind))
                               for kind in ("RC", "UD"))
            name = f"8 B, half round trip, {carrier}"
            self._row(group, f"{name}, against RC", ours, [connected], 1.15, beside=[])
            self._row(group, f"{name}, against raw UDP", ours, [raw], beside=[connected])
        return group

    def _rate(self, name, unit, size, figure, limit, absolute=None):
        """From one queue pair to another, which polls."""
        group = Group(name, unit, "loopback")
        options = ("--size", size, "--receivers-poll")

        def plot(series):
            return ("datagrams", series, 1) if size == 8 else None

        raw = group.add(RAW, "raw", self._raw("datagrams", figure, *options), plot(RAW))
        for carrier, make in self._makes.items():
            connected = group.add(f"RC, {carrier}", "uwarp",
                                  make.verbs("rate", figure, "--op", "send", "--size", size))
            ours = group.add(f"UD, {carrier}", "uwarp",
                             make.verbs("datagrams", figure, "--device", "{device}", *options),
                             plot(f"UD, {carrier}"))
            self._row(group, f"{human(size)}, {carrier}", ours, [raw], limit, absolute,
                      beside=[connected], quick=size == 8)
        return group

    def _crowd(self, receivers):
        """From one queue pair to many of some processes, which sleep until something comes."""
        group = Group(f"8 B datagrams to {receivers} receivers", "/s", "loopback")
        options = ("--receivers", receivers, "--processes", PROCESSES)
        raw = group.add(RAW, "raw", self._raw("datagrams", "per_second", *options),
                        ("datagrams", RAW, receivers))
        for carrier, make in self._makes.items():
            # What is nearest to it: as many connections between two processes.
            connected = group.add(f"RC, {carrier}", "uwarp",
                                  make.verbs("qps", "per_second", "--count", receivers, "--depth",
                                             16, "--all"))
            ours = group.add(f"UD, {carrier}", "uwarp",
                             make.verbs("datagrams", "per_second", "--device", "{device}",
                                        *options), ("datagrams", f"UD, {carrier}", receivers))
            self._row(group, f"8 B to {receivers} receivers, {carrier}", ours, [raw],
                      beside=[connected], quick=receivers == CROWDS[-1])
        return group
