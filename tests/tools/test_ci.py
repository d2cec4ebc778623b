# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""What docs/recipes offers for tests of one's own, whether its workflows can be read, and that no page of
it is long."""

import os
import re
import shutil
import subprocess
import sys

import pytest

import places
import recipes

WITH_ADAPTER = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", "/sys/class",
                "--dir", "/sys/class/infiniband/adapter_0"]


def can_fake_an_adapter():
    return shutil.which("bwrap") and subprocess.run(
        [*WITH_ADAPTER, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


@pytest.fixture(params=["without a device", "with an adapter"])
def adapter(request):
    """What is in front of a command, and whether that should use uwarp."""
    if request.param == "without a device":
        if os.path.exists("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
            pytest.skip("this machine has an RDMA device")
        return [], True
    if not can_fake_an_adapter():
        pytest.skip("bubblewrap cannot lay a folder over /sys/class")
    return WITH_ADAPTER, False


def output(command, folder):
    """Of a command that finds uwarp-run in PATH; status and text."""
    path = f"{places.UWARP_RUN.parent}:{os.environ['PATH']}"
    done = subprocess.run(list(map(str, command)), cwd=folder, env=os.environ | {"PATH": path},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          timeout=places.GUARD_SECONDS)
    return done.returncode, done.stdout


def test_conftest(adapter, tmp_path):
    front, uwarp = adapter
    (tmp_path / "conftest.py").write_text(recipes.blocks()["conftest.py"])
    (tmp_path / "test_rdma.py").write_text(
        "import subprocess\n"
        "def test_device():\n"
        "    listed = subprocess.run(['ibv_devices'], capture_output=True, text=True).stdout\n"
        f"    assert ('uwarp_lo' in listed) is {uwarp}\n"
        "def test_not_chosen():\n"
        "    assert False\n")
    status, text = output([*front, sys.executable, "-m", "pytest", "-q", "-k", "device"], tmp_path)
    assert status == 0 and "1 passed, 1 deselected" in text, text


def test_cmake(adapter, tmp_path):
    front, uwarp = adapter
    (tmp_path / "RdmaTest.cmake").write_text(recipes.blocks()["RdmaTest.cmake"])
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(own LANGUAGES NONE)\nenable_testing()\n"
        "include(RdmaTest.cmake)\nrdma_test(devices ibv_devices)\n")
    status, text = output([*front, "cmake", "-B", "build", "."], tmp_path)
    assert status == 0, text
    status, text = output([*front, "ctest", "--test-dir", "build", "--verbose"], tmp_path)
    # Without uwarp ibv_devices says that there is none, or lists what a machine has.
    assert "100% tests passed" in text or not uwarp, text
    assert ("uwarp_lo" in text) is uwarp, text


@pytest.mark.parametrize("page", sorted(recipes.PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_recipe_fits_on_a_screen(page):
    assert len(page.read_text().splitlines()) <= 40


def test_recipes_are_listed():
    listed = (recipes.PAGES / "README.md").read_text()
    for page in recipes.PAGES.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in listed


def test_no_file_of_a_recipe_is_there_twice():
    names = [name for page in recipes.PAGES.glob("*.md")
             for name in re.findall(r"^```\w+\n(?:#|//) (\S+)\n", page.read_text(), re.M)]
    assert sorted(names) == sorted(recipes.blocks())


def test_workflows():
    """Read as YAML, each script as the shell does. ./test.sh --containers runs them."""
    yaml = pytest.importorskip("yaml")
    steps = yaml.safe_load(recipes.blocks()[".github/workflows/rdma.yml"])["jobs"]["rdma"]["steps"]
    job = yaml.safe_load(recipes.blocks()[".gitlab-ci.yml"])["rdma"]
    action = yaml.safe_load((places.ROOT / "action" / "action.yml").read_text())
    scripts = [step["run"] for step in steps + action["runs"]["steps"] if "run" in step]
    scripts += job["before_script"] + job["script"]
    assert len(scripts) == 10
    for script in scripts:
        subprocess.run(["bash", "-n", "-c", script], check=True)


def test_fedora_dockerfile_names_what_the_spec_needs():
    text = " ".join(recipes.instructions(recipes.blocks()["fedora.Dockerfile"]))
    named = set(re.search(r"dnf install -y (.*?) RUN ", text)[1].split())
    spec = (places.ROOT / "redhat" / "uwarp.spec").read_text()
    needed = set(re.findall(r"^BuildRequires:\s+(\S+)", spec, re.M))
    assert needed - named == {"python3", "gtest-devel", "gmock-devel"}, "all but what tests need"
    assert named <= needed
