# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""How figures are written."""


def plain(value, unit):
    """Three or four digits, in the unit that short_unit() names."""
    if unit == "MB/s":
        return f"{value / 1000:.2f}"
    if unit == "/s":
        return f"{value / 1e6:.3f}" if value >= 1e6 else f"{value / 1e3:.1f}k"
    return f"{value:.2f}" if value < 1000 else f"{value:.0f}"


def short_unit(unit, value):
    if unit == "MB/s":
        return "GB/s"
    if unit == "/s":
        return "M/s" if value >= 1e6 else "/s"
    return unit


def with_unit(value, unit):
    return f"{plain(value, unit)} {short_unit(unit, value)}"
