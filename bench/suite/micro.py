# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Runs the micro-benchmarks of bench/micro and takes medians of their repetitions."""

import collections
import json
import statistics
import subprocess


def measure(build, repetitions):
    program = build / "bin" / "uwarp-micro"
    if not program.exists():
        return []
    done = subprocess.run(
        [str(program), "--benchmark_format=json", "--benchmark_min_time=0.02",
         f"--benchmark_repetitions={repetitions}",
         "--benchmark_enable_random_interleaving=true"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    times = collections.defaultdict(list)
    for run in json.loads(done.stdout)["benchmarks"]:
        if run["run_type"] == "iteration":
            times[run["run_name"]].append(run["cpu_time"])  # nanoseconds unless asked otherwise
    return [{"name": name, "median_ns": statistics.median(each), "min_ns": min(each),
             "max_ns": max(each)} for name, each in times.items()]
