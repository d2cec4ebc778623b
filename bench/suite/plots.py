# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Charts as SVG: size against latency and bandwidth, number of queue pairs against rate."""

import collections

CHARTS = {  # name -> x axis, y axis, divisor of the figures
    "latency": ("message size (bytes)", "half round trip (us)", 1),
    "bandwidth": ("message size (bytes)", "GB/s", 1000),
    "queue pairs": ("queue pairs or sockets", "million messages per second", 1e6),
    "one host latency": ("message size (bytes)", "half round trip (us)", 1),
    "one host bandwidth": ("message size (bytes)", "GB/s", 1000),
    "datagrams": ("receivers", "million datagrams of 8 B per second", 1e6),
}
BESIDE = {  # chart -> another one of which it shows these series too
    "one host latency": ("latency", ("raw TCP", "ib_send_lat")),
    "one host bandwidth": ("bandwidth", ("raw TCP", "ib_write_bw")),
}


def _points(campaign):
    """Chart -> series -> x -> figure; where several contenders share a point, the best."""
    charts = collections.defaultdict(lambda: collections.defaultdict(dict))
    for group in campaign.groups:
        best = min if group.less_is_better else max
        medians = campaign.medians(group)
        for each in group.contenders:
            if each.plot is None or each.label not in medians:
                continue
            chart, series, x = each.plot
            points = charts[chart][series]
            points[x] = best(points.get(x, medians[each.label]), medians[each.label])
    for chart, (other, series) in BESIDE.items():
        if chart in charts:
            charts[chart].update({each: charts[other][each] for each in series
                                  if each in charts.get(other, ())})
    return charts


def draw(campaign, folder):
    """Writes one file per chart that has points; returns their names, or None without the library.
    """
    try:
        import matplotlib  # here, as it may have been installed a moment ago
    except ImportError:
        return None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "uwarp"  # the same figures give the same file
    from matplotlib import pyplot, ticker

    names = []
    for chart, all_series in sorted(_points(campaign).items()):
        x_title, y_title, divisor = CHARTS[chart]
        figure, axes = pyplot.subplots(figsize=(8, 5))
        for series, points in sorted(all_series.items()):
            xs = sorted(points)
            axes.plot(xs, [points[x] / divisor for x in xs], marker="o", label=series,
                      linestyle="--" if "raw" in series else "-")
        ticks = sorted({x for points in all_series.values() for x in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks)
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:.0f}"))
        if chart.endswith("latency"):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f"{y:g}"))
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        axes.grid(True, which="both", alpha=0.3)
        axes.legend()
        names.append(f"{chart.replace(' ', '_')}.svg")
        figure.savefig(folder / names[-1], bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)
    return names
