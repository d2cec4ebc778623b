#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Draws the output of a terminal as SVG. It understands bold, inverted and the eight colours.

COMMAND | terminal_picture.py [--prompt COMMAND] > picture.svg
tmux capture-pane -ep | terminal_picture.py > picture.svg        # a program that uses the whole screen
"""

import argparse
import re
import sys
from xml.sax.saxutils import escape

# Units are pixels. WIDTH is that of a character: textLength makes any monospaced font fit.
SIZE, WIDTH, HEIGHT, MARGIN = 13, 7.8, 18, 12
BACKGROUND, FOREGROUND = "#1e2329", "#d8dee4"
COLOURS = ["#1e2329", "#e06c6c", "#79c07c", "#e0b85c", "#7fb7f0", "#c08bd0", "#6cc0c0", "#d8dee4"]
ESCAPE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|\x1b\(.|\x0f")


def plain(line):
    return ESCAPE.sub("", line)


def runs(line):
    """(column, text, attributes) of each piece of a line that looks the same."""
    colour, bold, inverted, column, at = FOREGROUND, False, False, 0, 0
    for match in [*ESCAPE.finditer(line), None]:
        text = line[at:match.start() if match else len(line)]
        if text:
            yield column, text, (colour, bold, inverted)
            column += len(text)
        if match is None:
            return
        at = match.end()
        if match[2] != "m":
            continue
        for code in (int(each or 0) for each in match[1].split(";")):
            if code == 0:
                colour, bold, inverted = FOREGROUND, False, False
            elif code in (1, 22):
                bold = code == 1
            elif code in (7, 27):
                inverted = code == 7
            elif 30 <= code <= 37:
                colour = COLOURS[code - 30]
            elif code == 39:
                colour = FOREGROUND


def draw_line(line, top, columns):
    end = len(plain(line))
    for column, text, (colour, bold, inverted) in runs(line):
        x, width = MARGIN + column * WIDTH, len(text) * WIDTH
        if inverted:
            if column + len(text) == end:  # tmux leaves out the spaces behind it
                width = (columns - column) * WIDTH
            yield (f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}" '
                   f'fill="{colour}"/>')
            colour = BACKGROUND
        # Spaces at both ends are left out: viewers do not agree on their width.
        inner = text.strip()
        if not inner:
            continue
        x += (len(text) - len(text.lstrip())) * WIDTH
        weight = ' font-weight="bold"' if bold else ""
        yield (f'<text x="{x:.1f}" y="{top + HEIGHT - 5}" textLength="{len(inner) * WIDTH:.1f}" '
               f'fill="{colour}"{weight}>{escape(inner)}</text>')


def draw(lines):
    columns = max(len(plain(line)) for line in lines)
    width = 2 * MARGIN + columns * WIDTH
    height = 2 * MARGIN + len(lines) * HEIGHT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
           f'viewBox="0 0 {width:.0f} {height}" font-family="monospace" font-size="{SIZE}" '
           f'xml:space="preserve">',
           f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>']
    for row, line in enumerate(lines):
        out += draw_line(line, MARGIN + row * HEIGHT, columns)
    return "\n".join(out) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", help="a command to show above its output")
    arguments = parser.parse_args()
    lines = [line.expandtabs().rstrip() for line in sys.stdin.read().rstrip("\n").split("\n")]
    if arguments.prompt:
        lines.insert(0, f"\x1b[1;34m$ {arguments.prompt}\x1b[0m")
    print(draw(lines), end="")


if __name__ == "__main__":
    main()
