#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Draws a part of UWARP_TRACE files: requests as bars, phase by phase, FPDUs as marks.

trace_picture.py [--from US] [--length US] [--most N] TRACE... > trace.svg

Shows where most happens in all traces at the same time, unless --from says where to look.
"""

import argparse
import bisect
import collections
import json
import pathlib
import sys

COLOURS = {"queued": "#e0b040", "sending": "#d06040", "in flight": "#7090c0",
           "posted": "#d8d8d8", "arriving": "#60a060", "unpolled": "#b080b0"}
SENT, RECEIVED = "#a03020", "#208040"
# Right of the last moment there is room for half of its label.
WIDTH, LABEL, RIGHT, ROW, TOP = 916, 190, 26, 18, 46


def load(path):
    """(name of the process, bars by request, marks) with times in microseconds."""
    bars, marks, open_phases, names = [], [], {}, {}
    for event in sorted(json.loads(path.read_text()), key=lambda each: each.get("ts", 0)):
        if event["ph"] == "i":
            marks.append((event["ts"], event["name"]))
            continue
        if "id2" not in event:
            continue
        request = (event["cat"], event["id2"]["local"])
        if event["ph"] == "b" and event["name"] in COLOURS:
            open_phases[request] = (event["name"], event["ts"])
        elif event["ph"] == "b":
            names[request] = event["name"]
        elif event["ph"] == "e" and request in open_phases:
            phase, begin = open_phases.pop(request)
            if phase == event["name"]:
                bars.append((request, phase, begin, event["ts"]))
    return names, bars, marks


def text(x, y, content, anchor="start", size=12):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-family="sans-serif" font-size="{size}" '
            f'text-anchor="{anchor}" fill="#303030">{content}</text>')


def mark(x, y, colour, title):
    return f'<path d="M{x:.1f} {y} l-3 -8 h6 z" fill="{colour}"><title>{title}</title></path>'


def legend():
    out, x = [], LABEL
    for phase, colour in COLOURS.items():
        out.append(f'<rect x="{x}" y="6" width="12" height="12" fill="{colour}"/>')
        out.append(text(x + 16, 16, phase))
        x += 88
    for name, colour in (("sent", SENT), ("received", RECEIVED)):
        out.append(mark(x + 6, 16, colour, f"FPDU {name}"))
        out.append(text(x + 16, 16, name))
        x += 88
    return out


def draw(traces, begin, length, most):
    scale = (WIDTH - LABEL - RIGHT) / length
    def at(time):
        return LABEL + (min(max(time, begin), begin + length) - begin) * scale
    out, y = [], TOP
    for number, (names, bars, marks) in enumerate(traces):
        out.append(text(4, y + 12, f"process {number + 1}", size=13))
        for time, name in (each for each in marks if begin <= each[0] <= begin + length):
            if name.endswith("received"):
                out.append(mark(at(time), y + 16, RECEIVED, name))
            else:
                out.append(mark(at(time), y + 12, SENT, name))
        y += ROW + 4
        rows = collections.defaultdict(list)
        for request, phase, start, end in bars:
            # Receives wait for long before and after: only where something happens to them.
            if end >= begin and start <= begin + length and end > start:
                rows[request].append((phase, start, end))
        shown = [request for request, phases in rows.items()
                 if any(phase != "posted" for phase, _, _ in phases)]
        shown.sort(key=lambda request: min(start for phase, start, _ in rows[request]
                                           if phase != "posted"))
        for request in shown[:most]:
            out.append(text(LABEL - 8, y + 12, f"{names.get(request, '?')} {request[1]}", "end", 11))
            for phase, start, end in rows[request]:
                width = max(at(end) - at(start), 0.8)
                out.append(f'<rect x="{at(start):.1f}" y="{y + 2}" width="{width:.1f}" '
                           f'height="{ROW - 5}" fill="{COLOURS[phase]}">'
                           f"<title>{phase}: {end - start:.1f} us</title></rect>")
            y += ROW
        y += 10
    head = legend()
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 1000, 10 ** 9) if length / s <= 12)
    for i in range(int(length / step) + 1):
        x = LABEL + i * step * scale
        head.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{y}" stroke="#e8e8e8"/>')
        head.append(text(x, TOP - 12, f"{i * step} us", "middle", 10))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
            f'viewBox="0 0 {WIDTH} {y}">\n<rect width="100%" height="100%" fill="white"/>\n'
            + "\n".join(head + out) + "\n</svg>\n")


def busiest(traces, length):
    """Where the trace with the fewest beginnings of phases has the most. Traces without requests, as of
    the side that is written to, do not count."""
    starts = [sorted(bar[2] for bar in bars) for _, bars, _ in traces if bars]
    if not starts:
        sys.exit("trace_picture.py: no trace has a request")

    def in_window(times, begin):
        return bisect.bisect(times, begin + length) - bisect.bisect_left(times, begin)

    return max(starts[0], key=lambda begin: min(in_window(times, begin) for times in starts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=pathlib.Path)
    parser.add_argument("--from", dest="begin", type=float, help="in microseconds, as in the files")
    parser.add_argument("--length", type=float, default=50, help="microseconds to show")
    parser.add_argument("--most", type=int, default=12, help="requests per process")
    arguments = parser.parse_args()
    traces = [load(path) for path in arguments.traces]
    begin = arguments.begin
    if begin is None:
        begin = busiest(traces, arguments.length) - 1
    print(draw(traces, begin, arguments.length, arguments.most), end="")


if __name__ == "__main__":
    main()
