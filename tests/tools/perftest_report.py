# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Reads the tables that the perftest programs print."""

import math
import re

# Goes to stderr, so it may cut a line of the table in two.
REMARK = r"(?:Correlation coefficient r\^2|Conflicting CPU frequency values detected): .*\n"
NUMBER = r"-?(?:\d+\.?\d*|\.\d+|inf|nan)"


class Row:
    """One line of the table: message size, iterations, and the figures behind them."""

    def __init__(self, size, iterations, figures):
        self.size = size
        self.iterations = iterations
        self.figures = figures

    def __repr__(self):
        return f"{self.size} B x {self.iterations}: {self.figures}"


def rows(output):
    """The rows below the header line "#bytes #iterations ..."."""
    found = []
    in_table = False
    for line in re.sub(REMARK, "", output).splitlines():
        if re.match(r"\s*#bytes\s+#iterations", line):
            in_table = True
        elif in_table:
            if not re.fullmatch(rf"\s*\d+\s+\d+(\s+{NUMBER})+\s*", line):
                continue
            fields = line.split()
            found.append(Row(int(fields[0]), int(fields[1]), [float(f) for f in fields[2:]]))
    return found


def gauged(row):
    """On a busy machine perftest may fail to gauge the cycle counter, which it does anew for each
    line, and takes its frequency for 0; and a short series of tiny messages rounds to 0.00 MiB/s."""
    return all(map(math.isfinite, row.figures)) and any(row.figures)


def bandwidth_mib(row):
    """Average bandwidth: the columns are peak, average, message rate."""
    return row.figures[1]


def message_rate(row):
    """Million messages per second."""
    return row.figures[2]


def latency_us(row):
    """Typical latency, or the average that -D prints alone."""
    return row.figures[2] if len(row.figures) > 2 else row.figures[0]
