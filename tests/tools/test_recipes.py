# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""README's first steps and the recipes of docs/containers.md, in bare root file systems of Debian 12.
Minutes, root and the network are needed: ./test.sh --containers."""

import os
import re
import shutil
import subprocess
import time

import pytest
import yaml

import perftest_report as report
import places
import recipes
import sandbox

pytestmark = [
    pytest.mark.containers,
    pytest.mark.skipif(os.geteuid() != 0, reason="making root file systems needs root"),
    pytest.mark.skipif(not shutil.which("debootstrap"), reason="debootstrap is not installed"),
    pytest.mark.skipif(bool(sandbox.missing()), reason=sandbox.missing() or "-"),
]


@pytest.fixture
def image(tmp_path):
    """A bare Debian 12; removed at the end, as it is large."""
    yield recipes.Image(tmp_path / "root", recipes.base_root("bookworm"))
    subprocess.run(["rm", "-rf", tmp_path / "root"], check=True)


@pytest.fixture
def timed(capsys):
    """Runs a script in an image and prints how long that took. No judgement: machines differ."""

    def run(image, what, script):
        began = time.monotonic()
        output = image.run(f"{script}\ntimes")
        # The shell's own time and that of its children, each of user and of system.
        spent = sum(int(minutes) * 60 + float(seconds) for minutes, seconds in
                    re.findall(r"(\d+)m([\d.]+)s", "".join(output.splitlines(True)[-2:])))
        with capsys.disabled():
            print(f"\n{what}: {time.monotonic() - began:.0f} s, of processors {spent:.0f} s")
        return output

    return run


def test_readme_from_a_bare_system(image, timed):
    """The first line of README's first block, then its example with a server and a client."""
    recipes.copy_sources(image.root / "src")
    readme = (places.ROOT / "README.md").read_text()
    first = re.search(r"^```\n(.*?)#", readme, re.M | re.S)[1].strip()
    server, client = (re.search(rf"^{side}\$ (.*)", readme, re.M)[1]
                      for side in ("server", "client"))
    image.folder = "/src"
    output = timed(image, f"README's {first}", first)
    assert report.rows(output), output
    output = image.run(f"{server} >/dev/null & sleep 1; {client}; wait $!")
    assert report.rows(output), output


def contained(pod, tmp_path, image, more=()):
    """A link within the image: an unprivileged user, a read-only root, Docker's filter."""
    filter_file = sandbox.write_filter(sandbox.docker_filter(), tmp_path / "filter")
    place = sandbox.container("image", pod, filter_file, image.root, more)
    place.uwarp_run = "uwarp-run"
    return places.Link("image", place, place)


@pytest.fixture
def built(tmp_path):
    """built(name, change) -> the image of a Dockerfile of the page, whose text `change` may replace."""
    def build(name, change=lambda text: text):
        return recipes.build_dockerfile(change(recipes.blocks()[name]), tmp_path / name)

    yield build
    for name in recipes.blocks():
        subprocess.run(["rm", "-rf", tmp_path / name], check=True)


def test_dockerfile(built, start, pair, pod, tmp_path):
    image = built("Dockerfile")
    assert image.user == "nobody" and image.entry == ["uwarp-run"]
    link = contained(pod, tmp_path, image)
    command = ["ib_write_bw", "-F", "-p", "{port}"]
    _, output = pair(link, command, command + ["{address}"])
    assert report.rows(output), output
    # As in the drop-in of a service.
    start(["grep", "-q", "/libuwarp-preload.so$", "/proc/self/maps"], link.server, uwarp=False,
          env={"LD_PRELOAD": "libuwarp-preload.so"}).succeed()


def test_fedora_dockerfile_on_debian(built, start, pair, pod, tmp_path):
    """Everything of it but dnf."""
    link = contained(pod, tmp_path, built("fedora.Dockerfile", recipes.on_debian))
    command = ["ib_write_bw", "-F", "-p", "{port}"]
    _, output = pair(link, command, command + ["{address}"])
    assert report.rows(output), output


def test_pod(built, image, start, pod, tmp_path, port):
    """What the init container lays into the volume serves an image that knows nothing of uwarp."""
    manifest = yaml.safe_load(recipes.blocks()["pod.yaml"])["spec"]
    init, application = manifest["initContainers"][0], manifest["containers"][0]
    volume = tmp_path / "volume"
    volume.mkdir()

    def enter(image, container):
        mount = container["volumeMounts"][0]
        image.path(mount["mountPath"]).mkdir(exist_ok=True)
        bind = "--ro-bind" if mount.get("readOnly") else "--bind"
        return contained(pod, tmp_path, image, [bind, str(volume), mount["mountPath"]]).server

    carrier = built("carrier.Dockerfile")
    start(init["command"], enter(carrier, init), uwarp=False).succeed()
    image.run("apt-get update && apt-get install -y --no-install-recommends perftest")
    assert not list(image.root.glob("usr/lib/*/libisal.so*"))
    place = enter(image, application)
    env = {entry["name"]: entry["value"] for entry in application["env"]}
    command = [*application["command"], "-p", port]
    server = start(command, place, uwarp=False, env=env)
    places.wait_listening(server, port)
    output = start([*command, "127.0.0.1"], place, uwarp=False, env=env).succeed()
    assert report.rows(output), output
    server.succeed()


def run_steps(image, scripts):
    """In a folder in which uwarp's sources are below uwarp/, as a checkout or clone makes it."""
    image.folder = "/job"
    recipes.copy_sources(image.path("uwarp"))
    output = ""
    for script in scripts:
        output = image.run(script)
    assert output.count("ping data: ") == 10, output


def test_github_actions(image):
    steps = yaml.safe_load(recipes.blocks()[".github/workflows/rdma.yml"])["jobs"]["rdma"]["steps"]
    assert sum("actions/checkout" in step.get("uses", "") for step in steps) == 2
    run_steps(image, [step["run"] for step in steps if "run" in step])


def test_gitlab(image):
    job = yaml.safe_load(recipes.blocks()[".gitlab-ci.yml"])["rdma"]
    lines = [line for line in job["before_script"] + job["script"] if "git clone" not in line]
    run_steps(image, ["\n".join(lines)])
