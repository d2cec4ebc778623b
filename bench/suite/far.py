# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""uwarp beside plain TCP where the other end is far away: two network namespaces with far_wire between
them, at 1, 20 and 100 ms, with and without losses."""

from . import pairs
from .campaign import Campaign
from .contenders import Contenders
from .groups import KIB, MIB, Group, Row, human

MBIT = 1000
ROUND_TRIPS_MS = (1, 20, 100)
LOSSES_PERCENT = (0, 0.1)
READ_DEPTH, READ_SIZE = 16, 4 * KIB
STREAM_SIZES = (64 * KIB, MIB)
STREAM_BYTES = 32 << 20   # outstanding: more than is ever under way
CONNECTS = 10
# Frames that wait for the rate: a tenth of what a router has, more than a burst of acknowledgements.
QUEUE_MS = 20


class FarCampaign(Campaign):
    """One whose links are named by their round trip and losses."""

    def _link(self, name):
        if name not in self._links:
            milliseconds, _, loss, *_ = name.split()
            far = pairs.places.FarNamespaces(
                "--round-trip-us", int(milliseconds) * 1000, "--mbit", MBIT, "--queue-ms", QUEUE_MS,
                "--loss-percent", loss)
            self._held.callback(far.close)
            self._links[name] = far.link()
        return self._links[name]


def _scaled(measure, factor):
    return lambda link: measure(link) * factor


def _given(figure):
    return lambda link: figure


class Catalogue:
    """The groups of all distances. A timed sample takes as long as TCP needs to find the rate."""

    def __init__(self, build):
        self._build = build

    def groups(self):
        for milliseconds in ROUND_TRIPS_MS:
            for loss in LOSSES_PERCENT:
                link = f"{milliseconds} ms {loss} % lost"
                make = Contenders(self._build, 2 + milliseconds / 20, 1.0)
                yield from (self._stream(make, size, link) for size in STREAM_SIZES)
                if loss == 0:
                    yield self._reads(make, milliseconds, link)
                    yield self._connects(make, milliseconds, link)

    def _stream(self, make, size, link):
        group = Group(f"stream {human(size)}, {link}", "MB/s", link)
        raw = group.add("raw TCP", "raw", make.raw("stream", "mb_per_second", "--size", size, "--read",
                                                   MIB))
        for operation in ("write", "send"):
            ours = group.add(operation, "uwarp", _scaled(
                make.verbs("rate", "per_second", "--op", operation, "--size", size, "--depth",
                           STREAM_BYTES // size, "--list", 1, "--peer-polls"), size / 1e6))
            group.rows.append(Row(f"{human(size)} {operation.title()}s, {link}", ours, [raw], 0.95))
        return group

    def _reads(self, make, milliseconds, link):
        group = Group(f"Reads, {link}", "/s", link)
        limit = group.add(f"{READ_DEPTH} per round trip", "raw",
                          _given(READ_DEPTH * 1000 / milliseconds))
        ours = group.add("read", "uwarp", make.verbs(
            "rate", "per_second", "--op", "read", "--size", READ_SIZE, "--depth", READ_DEPTH,
            "--list", 1))
        group.rows.append(Row(f"{human(READ_SIZE)} Reads, {READ_DEPTH} outstanding, {link}", ours,
                              [limit], 0.95))
        return group

    def _connects(self, make, milliseconds, link):
        """Round trips that a connection takes, one after the other."""
        group = Group(f"connects, {link}", "round trips", link)

        def round_trips(measure):
            return lambda link: 1000 / milliseconds / measure(link)
        one_by_one = ("connects", "per_second", "--count", CONNECTS, "--window", 1)
        raw = group.add("raw TCP, with an exchange", "raw", round_trips(make.raw(*one_by_one)))
        ours = group.add("rdma_cm", "uwarp", round_trips(make.verbs(*one_by_one)))
        # Of two: one more is allowed.
        group.rows.append(Row(f"rdma_cm connects, {link}", ours, [raw], 1.5))
        return group


def measure(groups, rounds, limit_seconds, say):
    done = FarCampaign(groups, say)
    done.run(rounds, limit_seconds)
    return done
