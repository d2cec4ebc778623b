# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Parts of the engine alone: times of bench/micro, as medians of repetitions, and the instruction
counts of bench/instructions beside their record."""

import collections
import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import statistics
import subprocess
import sys


def measure(build, repetitions):
    """What is not installed is left out."""
    return {"times": _times(build, repetitions), "instructions": _instructions(build)}


def _times(build, repetitions):
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
             "max_ns": max(each)} for name, each in sorted(times.items())]


def _instructions(build):
    """Operation -> count now, and the recorded one (None if there is none)."""
    if not (shutil.which("valgrind") and (build / "bin" / "instruction_driver").exists()):
        return {}
    path = str(pathlib.Path(__file__).resolve().parent.parent / "instructions")
    loader = importlib.machinery.SourceFileLoader("instructions", path)
    tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("instructions", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(tool)
    recorded = json.loads(tool.RECORD.read_text()) if tool.RECORD.exists() else {}
    return {each: {"count": tool.count(build, each), "recorded": recorded.get(each)}
            for each in tool.OPERATIONS}
