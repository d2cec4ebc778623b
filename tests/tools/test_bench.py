# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""bench/run does its work from end to end. What it measures is no matter for a test."""

import json
import shutil
import statistics
import subprocess
import sys
import xml.etree.ElementTree

import places
import pytest

sys.path.insert(0, str(places.ROOT / "bench"))
from suite import conditions  # noqa: E402
from suite import report as reporting  # noqa: E402
from suite.campaign import Campaign  # noqa: E402
from suite.groups import Group, Row  # noqa: E402

# Measured for a time, not for a number of messages: short on a busy machine too.
ROWS = ("ib_send_bw 16 KiB", "256 QPs, all active", "one host: 16 KiB Writes, against raw memory",
        "datagrams: 8 B to 32 receivers, TCP")
RUN_SECONDS = 300  # with the installation of its packages


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a short run of two rows has written."""
    output = tmp_path_factory.mktemp("benchmarks")
    done = subprocess.run(
        [places.ROOT / "bench" / "run", "--quick", "--rows", ";".join(ROWS), "--rounds", "1",
         "--no-install", "--build", places.BUILD, "--output", output],
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
    assert {row["row"] for row in report["rows"]} == set(ROWS)
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


def test_each_section_has_its_table(report, folder):
    assert len({row["section"] for row in report["rows"]}) == 3
    page = (folder / "results.md").read_text()
    for row in report["rows"]:
        _, _, section = page.partition(f"## Rows {row['section']}\n")
        assert f"| {row['row']} |" in section.partition("\n## ")[0]


@pytest.mark.parametrize("chart", ["bandwidth", "queue_pairs", "one_host_bandwidth", "datagrams"])
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
            tmp_path / "record.json", "--rows", "-"]  # without what threads share: test_sharing.py
    subprocess.run(tool, check=True, capture_output=True, timeout=RUN_SECONDS)
    record = json.loads((tmp_path / "record.json").read_text())
    assert set(record) == {"write-8", "send-8", "write-65536"}
    subprocess.run(tool + ["--check"], check=True, capture_output=True, timeout=RUN_SECONDS)
    (tmp_path / "record.json").write_text(json.dumps({name: n // 2 for name, n in record.items()}))
    worse = subprocess.run(tool + ["--check"], check=False, capture_output=True, text=True,
                           timeout=RUN_SECONDS)
    assert worse.returncode == 1 and "REGRESSION" in worse.stdout


def test_rows_on_many_cores_are_by_threads_and_by_queue_pairs():
    done = bench_run("--cores", "--list", "--queue-pairs", "16,10000")
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert {"1 thread of one process, 4 QPs each, TCP", "8 processes, 4 QPs each, shared memory"} <= set(rows)
    assert [row for row in rows if row.startswith("10000 QPs, ")]
    assert not [row for row in rows if row.startswith("1000 QPs, ")]


def test_two_processes_with_two_threads_beside_plain_tcp(tmp_path):
    done = bench_run("--cores", "--quick", "--rounds", "1", "--rows", "2 processes, 4 QPs each, TCP",
                     "--output", tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    part, = json.loads((tmp_path / "cores.json").read_text())
    row, = part["rows"]
    assert row["median"] > 0 and row["reference"] == "raw reno"
    assert part["conditions"]["cpus"] > 0
    assert "2 processes, 4 QPs each, TCP" in (tmp_path / "cores.md").read_text()


def bench_run(*arguments):
    return subprocess.run([places.ROOT / "bench" / "run", "--no-install", "--build", places.BUILD,
                           *arguments], capture_output=True, text=True, timeout=RUN_SECONDS,
                          check=False)


def test_rows_beside_siw_are_listed_without_its_machine():
    done = bench_run("--siw", "--list")
    assert done.returncode == 0, done.stderr
    assert {"ib_write_bw 1 MiB, loopback", "ib_send_lat 8 B, veth 1500"} \
        <= set(done.stdout.splitlines())


@pytest.mark.parametrize("more", [(), ("--siw",)])
def test_no_row_is_an_error(tmp_path, more):
    done = bench_run(*more, "--rows", "nothing of the kind", "--output", tmp_path / "results")
    assert done.returncode == 1
    assert "no row matches" in done.stderr
    assert not (tmp_path / "results").exists()


def campaign_of(ours, theirs, failures):
    """One of as many rounds as there are figures: None is one that failed."""
    group = Group("stream", "MB/s", "loopback")
    subject = group.add("ours", "uwarp", None)
    reference = group.add("theirs", "raw", None)
    group.rows.append(Row("a stream", subject, [reference], 1.0))
    campaign = Campaign([group], print)
    campaign.samples = {("stream", "ours"): ours, ("stream", "theirs"): theirs}
    campaign.failures = failures
    return campaign


def test_report_says_what_failed_and_of_how_many_rounds_a_figure_is():
    campaign = campaign_of([None, 3000, None], [2000, 2000, 2000],
                           {("stream", "ours"): "no peer\nand more"})
    rows = reporting.results(campaign)
    assert rows[0]["verdict"] == "met"
    facts = conditions.here() | {"crc": False, "rounds": 3, "quick": False}
    page = reporting.markdown(rows, facts, [], None, campaign.failures)
    assert "3.00 GB/s (1 of 3)" in page
    assert "1.50 (1 of 3)" in page
    assert "- stream: ours: `no peer`" in page
    whole = reporting.table(reporting.results(campaign_of([3000] * 3, [2000] * 3, {})))
    assert " of 3" not in whole


def test_a_row_without_its_reference_has_failed():
    rows = reporting.results(campaign_of([3000], [None], {}))
    assert rows[0]["verdict"] == "no reference"
    assert reporting.failed(rows[0])
    assert reporting.summary(rows) == "0 targets met, 0 missed, 1 rows failed"


def test_kernels_are_named_by_their_version_alone():
    assert conditions.numeric("6.1.0-18-amd64") == "6.1.0"
    assert conditions.numeric("6.12.9+bpo") == "6.12.9"
    assert conditions.numeric("next") == "unknown"


def test_one_start_is_enough():
    done = subprocess.run([places.ROOT / "bench" / "startup", "--build", places.BUILD, "--starts",
                           "1", "--json"], capture_output=True, text=True, timeout=RUN_SECONDS,
                          check=True)
    row = json.loads(done.stdout)["results"]["true"]["alone"]
    assert row["low_us"] == row["median_us"] == row["high_us"]


def test_pairs_starts_both_builds_in_turns(tmp_path):
    """Which one a program ran with shows in a file: each build's uwarp-run writes its name there."""
    started = tmp_path / "started"
    builds = []
    for name in ("old", "new"):
        programs = tmp_path / name / "bin"
        programs.mkdir(parents=True)
        run = programs / "uwarp-run"
        run.write_text(f'#!/bin/sh\necho {name} >>{started}\nexec {places.UWARP_RUN} "$@"\n')
        run.chmod(0o755)
        builds.append(programs.parent)
    (builds[1] / "bin" / "verbs_bench").symlink_to(places.BUILD / "bin" / "verbs_bench")
    subprocess.run([places.ROOT / "bench" / "pairs", *builds, "--rounds", "2", "--seconds", "0.1",
                    "--personas", "iwarp", "--carriers", "tcp", "--rows", "8 B Writes"],
                   check=True, stdout=subprocess.DEVNULL, timeout=RUN_SECONDS)
    assert started.read_text().split() == ["old"] * 2 + ["new"] * 4 + ["old"] * 2
