# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Many threads and many queue pairs on as many processors as there are, beside plain TCP that does the same
work: batches of 16 messages of 8 B, each answered, one outstanding on each queue pair or socket. One
process at each end, or one for each thread."""

import os

from .campaign import Campaign
from .groups import Group, Row

THREADS = (1, 2, 4, 8)
QUEUE_PAIRS = (16, 256, 1000)
PER_THREAD = 4  # queue pairs, where rows differ by threads
BATCH = 16
CARRIERS = {"TCP": "0", "shared memory": "1"}  # UWARP_SHM


def thread_counts(cpus):
    """With one per processor, in order."""
    return sorted({*THREADS, cpus})


class Catalogue:
    """Rows by threads, and by queue pairs for one thread per processor."""

    def __init__(self, contenders, queue_pairs=QUEUE_PAIRS, cpus=None):
        self._make = contenders
        self._queue_pairs = queue_pairs
        self._cpus = cpus or len(os.sched_getaffinity(0))

    def groups(self):
        for threads in thread_counts(self._cpus):
            yield self._group(f"{count(threads, 'thread')} of one process, {PER_THREAD} QPs each", 1, threads,
                              PER_THREAD * threads, quick=threads == self._cpus)
            if threads > 1:
                yield self._group(f"{threads} processes, {PER_THREAD} QPs each", threads, 1,
                                  PER_THREAD * threads)
        for pairs in self._queue_pairs:
            yield self._group(f"{pairs} QPs, {count(self._cpus, 'thread')} of one process", 1, self._cpus, pairs,
                              quick=pairs == 256)
            if self._cpus > 1:
                yield self._group(f"{pairs} QPs, {self._cpus} processes", self._cpus, 1, pairs)

    def _group(self, name, processes, threads, pairs, quick=False):
        group = Group(name, "/s", "loopback")
        ends = ("--processes", processes, "--threads", threads, "--count", pairs)
        raw = group.add("raw reno", "raw",
                        self._make.raw("scale", "per_second", *ends, "--size", 8, "--batch", BATCH,
                                       congestion="reno"))
        for carrier, shm in CARRIERS.items():
            label = group.add(f"uwarp, {carrier}", "uwarp",
                              self._make.under(UWARP_SHM=shm).verbs("scale", "per_second", *ends,
                                                                    "--depth", BATCH))
            group.rows.append(Row(f"{name}, {carrier}", label, [raw], beside=[], quick=quick))
        return group


def count(number, what):
    return f"{number} {what}" + ("s" if number > 1 else "")


def measure(groups, rounds, limit_seconds, say):
    done = Campaign(groups, say)
    done.run(rounds, limit_seconds)
    return done
