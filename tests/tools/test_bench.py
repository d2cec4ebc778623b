# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""bench/run does its work from end to end. What it measures is no matter for a test."""

import json
import shutil
import statistics
import subprocess
import xml.etree.ElementTree

import places
import pytest

# Measured for a time, not for a number of messages: short on a busy machine too.
ROWS = ("ib_send_bw 16 KiB", "256 QPs, all active")
RUN_SECONDS = 300  # with the installation of its packages


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a short run of two rows has written."""
    output = tmp_path_factory.mktemp("benchmarks")
    done = subprocess.run(
        [places.ROOT / "bench" / "run", "--quick", "--rows", ";".join(ROWS), "--rounds", "1",
         "--build", places.BUILD, "--output", output],
        capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for row in ROWS:
        assert row in done.stdout
    return output


@pytest.fixture(scope="module")
def report(folder):
    return json.loads((folder / "results.json").read_text())


def test_each_row_is_measured_in_the_same_run_as_its_reference(report):
    groups = {group["name"]: group["samples"] for group in report["groups"]}
    assert [row["row"] for row in report["rows"]] == list(ROWS)
    for row in report["rows"]:
        samples = groups[row["group"]]
        ours = statistics.median(samples[row["subject"]])
        best = min if row["unit"] == "us" else max
        theirs = best(statistics.median(samples[label]) for label in row["references"])
        assert row["median"] == ours
        assert row["ratio"] == pytest.approx(ours / theirs)
        assert row["min"] <= row["median"] <= row["max"]
        aimed = row["ratio_target"] is not None
        assert (row["verdict"].split(",")[0] in ("met", "missed")) == aimed


def test_markdown_has_a_line_per_row(folder):
    lines = (folder / "results.md").read_text().splitlines()
    for row in ROWS:
        assert len([line for line in lines if line.startswith(f"| {row} |")]) == 1


@pytest.mark.parametrize("chart", ["bandwidth", "queue_pairs"])
def test_plot_is_drawn(folder, chart):
    pytest.importorskip("matplotlib")  # bench/run installs it where it may
    root = xml.etree.ElementTree.parse(folder / f"{chart}.svg").getroot()
    assert root.tag.endswith("svg")
    assert root.findall(".//{http://www.w3.org/2000/svg}path")


def test_instructions_are_within_tolerance_of_themselves(tmp_path):
    """The record is of one compiler and build type; what is checked here is the tool."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    tool = [places.ROOT / "bench" / "instructions", "--build", places.BUILD, "--record",
            tmp_path / "record.json"]
    subprocess.run(tool, check=True, capture_output=True, timeout=RUN_SECONDS)
    record = json.loads((tmp_path / "record.json").read_text())
    assert set(record) == {"write-8", "send-8", "write-65536"}
    subprocess.run(tool + ["--check"], check=True, capture_output=True, timeout=RUN_SECONDS)
    (tmp_path / "record.json").write_text(json.dumps({name: n // 2 for name, n in record.items()}))
    worse = subprocess.run(tool + ["--check"], check=False, capture_output=True, text=True,
                           timeout=RUN_SECONDS)
    assert worse.returncode == 1 and "REGRESSION" in worse.stdout
