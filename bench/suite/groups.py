# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""What is measured together, and which of it makes a row.

A group is contenders on one link and in one unit. A row compares one of them, the subject, with the
best of its references.
"""

import dataclasses
import typing

KIB, MIB = 1 << 10, 1 << 20
LESS_IS_BETTER = ("us", "KiB", "round trips")

# Sections of the report.
OVER_TCP = "over TCP"
ONE_HOST = "of one host"
DATAGRAMS = "of datagrams"


@dataclasses.dataclass
class Contender:
    label: str
    kind: str  # raw, uwarp, ucx, ucx_memory, libfabric or check
    measure: typing.Callable
    plot: tuple = None  # chart, series, x


@dataclasses.dataclass
class Row:
    name: str
    subject: str
    references: list
    limit: typing.Any = None   # of the ratio; a number, or two contenders whose ratio it is
    absolute: float = None     # limit of the figure itself
    beside: list = None        # other contenders shown; None: UCX and libfabric over TCP, checks
    needs: list = ()           # further contenders that the limit is made of
    quick: bool = False
    section: str = OVER_TCP


@dataclasses.dataclass
class Group:
    name: str
    unit: str  # us, MB/s, /s, KiB or round trips
    link: str  # loopback, or veth and the MTU
    contenders: list = dataclasses.field(default_factory=list)
    rows: list = dataclasses.field(default_factory=list)

    @property
    def less_is_better(self):
        return self.unit in LESS_IS_BETTER

    def add(self, label, kind, measure, plot=None):
        self.contenders.append(Contender(label, kind, measure, plot))
        return label


def human(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"
