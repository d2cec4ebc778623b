# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""What comes of a wire that UWARP_FAULT orders, beside what was ordered: half round trips and rates on
loopback, by TCP and by shared memory."""

from .campaign import Campaign
from .contenders import Contenders
from .groups import KIB, Group, Row

SECONDS = 1.0
ROUND_TRIPS = 2000
LATENCIES_US = (20, 100)
RATES_GBIT = (1, 10)
RATE_LATENCY_US = 100
CARRIERS = {"TCP": "0", "shared memory": "1"}
MOST = 1.10   # of a time
LEAST = 0.90  # of a rate


def _added(measure, more):
    return lambda link: measure(link) + more


def _given(figure):
    return lambda link: figure


class Catalogue:
    """A half round trip is to take what it takes without a wire, and the latency."""

    def __init__(self, build):
        self._make = Contenders(build, SECONDS, 1.0)

    def groups(self):
        for carrier, choice in CARRIERS.items():
            plain = self._make.under(UWARP_SHM=choice)
            for latency in LATENCIES_US:
                yield from self._latencies(plain, carrier, latency)
            yield from (self._rate(plain, carrier, gbit) for gbit in RATES_GBIT)

    def _latencies(self, plain, carrier, latency):
        wired = plain.under(UWARP_FAULT=f"wire latency={latency}us")
        for tool, kind in (("ib_send_lat", ("-c", "RC")), ("ib_send_lat", ("-c", "UD")),
                           ("ib_write_lat", ()), ("ib_read_lat", ())):
            what = f"{tool}{' of datagrams' if 'UD' in kind else ''}"
            group = Group(f"{what}, {latency} us ordered, by {carrier}", "us", "loopback")
            halved = tool == "ib_read_lat"
            makers = [each.under(UWARP_PERSONA="roce") if "UD" in kind else each
                      for each in (plain, wired)]
            bare, over = (each.perftest_latency(tool, 8, *kind, count=ROUND_TRIPS, halved=halved)
                          for each in makers)
            reference = group.add(f"without, and {latency} us", "raw", _added(bare, latency))
            ours = group.add("over the wire", "uwarp", over)
            group.rows.append(Row(group.name, ours, [reference],
                                  None if tool == "ib_write_lat" else MOST))
            yield group

    def _rate(self, plain, carrier, gbit):
        group = Group(f"ib_write_bw 64 KiB, {gbit} Gbit/s ordered, by {carrier}", "MB/s", "loopback")
        over = plain.under(UWARP_FAULT=f"wire latency={RATE_LATENCY_US}us rate={gbit}G")
        reference = group.add("ordered", "raw", _given(gbit * 125))
        ours = group.add("over the wire", "uwarp",
                         over.perftest_bandwidth("ib_write_bw", 64 * KIB))
        group.rows.append(Row(group.name, ours, [reference], LEAST))
        return group


def measure(groups, rounds, limit_seconds, say):
    done = Campaign(groups, say)
    done.run(rounds, limit_seconds)
    return done
