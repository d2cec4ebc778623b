# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Round after round, every contender of every wanted group once, so that a change of the machine's
mood meets all of them."""

import contextlib
import fnmatch
import statistics
import subprocess
import time

from . import pairs
from .figures import with_unit

MOST_FAILURES = 2  # of one contender; then it is left out


def wanted_groups(groups, pattern=None, quick=False):
    """The groups cut down to the rows asked for and to the contenders that these need."""
    for group in groups:
        group.rows = [row for row in group.rows
                      if (quick is False or row.quick or pattern) and matches(row.name, pattern)]
        if not group.rows:
            continue
        needed = set()
        for row in group.rows:
            needed.update([row.subject, *row.references, *row.needs])
            needed.update(beside(group, row))
        group.contenders = [each for each in group.contenders if each.label in needed]
        yield group


def matches(name, pattern):
    """A pattern with wildcards matches the whole name, any other a part of it; several are
    separated by semicolons."""
    if not pattern:
        return True
    return any(fnmatch.fnmatch(name, each) if "*" in each else each in name
               for each in pattern.split(";"))


def beside(group, row):
    """Labels of the contenders that are shown in a row without being its reference."""
    if row.beside is not None:
        return row.beside
    return [each.label for each in group.contenders if each.kind in ("ucx", "libfabric", "check")]


class Campaign:
    """Figures of all contenders of all groups."""

    def __init__(self, groups, say):
        self.groups = groups
        self.samples = {}   # (group name, label) -> one figure per round, None where it failed
        self.failures = {}  # the same key -> what the first failure said
        self.not_offered = set()  # keys
        self.rounds_done = 0
        self._say = say
        self._links = {"loopback": pairs.places.loopback()}
        self._held = contextlib.ExitStack()

    def run(self, rounds, limit_seconds):
        """As many rounds as fit into the limit; the first one in any case."""
        deadline = time.monotonic() + limit_seconds
        with self._held:
            for number in range(1, rounds + 1):
                if not self._round(number, rounds, deadline if number > 1 else None):
                    self._say(f"no time for more than {self.rounds_done} of {rounds} whole rounds")
                    break
                self.rounds_done = number

    def _link(self, name):
        if name not in self._links:
            veth = pairs.Veth(int(name.split()[1]))
            self._held.callback(veth.close)
            self._links[name] = veth.link()
        return self._links[name]

    def _round(self, number, rounds, deadline):
        """False if the deadline has cut it short."""
        total = sum(len(group.contenders) for group in self.groups)
        done = 0
        for group in self.groups:
            for contender in group.contenders:
                if deadline is not None and time.monotonic() > deadline:
                    return False
                done += 1
                place = f"round {number}/{rounds} [{done}/{total}] {group.name}: {contender.label}"
                self._sample(group, contender, place)
        return True

    def _sample(self, group, contender, place):
        key = (group.name, contender.label)
        figures = self.samples.setdefault(key, [])
        if key in self.not_offered or (len(figures) >= MOST_FAILURES and not any(figures)):
            figures.append(None)
            return
        try:
            figures.append(contender.measure(self._link(group.link)))
            self._say(f"{place}  {with_unit(figures[-1], group.unit)}")
        except pairs.NotOffered as reason:
            figures.append(None)
            self.not_offered.add(key)
            self._say(f"{place}  {reason}")
        except (pairs.Failed, AssertionError, OSError, ValueError, LookupError,
                subprocess.SubprocessError) as failure:
            figures.append(None)
            self.failures.setdefault(key, str(failure))
            self._say(f"{place}  FAILED")

    def medians(self, group):
        """Label -> median, of those that have figures."""
        result = {}
        for each in group.contenders:
            figures = [f for f in self.samples.get((group.name, each.label), []) if f is not None]
            if figures:
                result[each.label] = statistics.median(figures)
        return result
