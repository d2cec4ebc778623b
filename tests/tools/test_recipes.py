# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""README's first steps and the recipes of docs/recipes, in bare root file systems of Debian 12.
Minutes, root and the network are needed: ./test.sh --containers."""

import os
import pathlib
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

RPING_PORT = 7174

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


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """built(name, change) -> the image of a Dockerfile of the pages, whose text `change` may replace.
    Each is built once."""
    folder, images = tmp_path_factory.mktemp("images"), {}

    def build(name, change=lambda text: text, more=None):
        if name not in images:
            text = change(recipes.blocks()[name])
            images[name] = recipes.build_dockerfile(text, folder / str(len(images)), more)
        return images[name]

    yield build
    subprocess.run(["rm", "-rf", folder], check=True)


MOST_BYTES_BEYOND_THE_BASE = 60_000_000


def test_dockerfile(built, start, pair, pod, tmp_path, capsys):
    image = built("Dockerfile")
    assert image.user == "nobody" and image.entry == ["uwarp-run"]
    base = recipes.Image(tmp_path / "base", recipes.base_root("bookworm"))
    more = image.size() - base.size()
    with capsys.disabled():
        print(f"\nThe image has {more / 1e6:.1f} MB beyond Debian's {base.size() / 1e6:.1f} MB")
    assert 0 < more < MOST_BYTES_BEYOND_THE_BASE
    said = re.search(r"it has (\d+) MB", (recipes.PAGES / "docker.md").read_text())
    assert abs(more / 1e6 - int(said[1])) < 3, "as docker.md says"
    assert not list(image.root.glob("src")), "no build tree"
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


class Pods:
    """Two pods of the deployment, each a network namespace of its own, with what its init container
    has laid into the volume."""

    def __init__(self, manifest, namespaces, carrier, application, folder, start):
        link = namespaces.link()
        self.link = places.Link("pods", *(
            self._pod(manifest, space, end, carrier, application, folder / name, start)
            for name, space, end in (("first", namespaces.near, link.server),
                                     ("second", namespaces.far, link.client))))

    @staticmethod
    def _pod(manifest, space, end, carrier, application, folder, start):
        init, main = manifest["initContainers"][0], manifest["containers"][0]
        user = manifest["securityContext"]["runAsUser"]
        volume = folder / "volume"
        volume.mkdir(parents=True)
        volume.chmod(0o777)
        filter_file = sandbox.write_filter(sandbox.docker_filter(), folder / "filter")

        def enter(image, container):
            assert user == sandbox.UID and container["securityContext"]["readOnlyRootFilesystem"]
            mount = container["volumeMounts"][0]
            image.path(mount["mountPath"]).mkdir(exist_ok=True)
            bind = "--ro-bind" if mount.get("readOnly") else "--bind"
            place = sandbox.container(folder.name, space, filter_file, image.root,
                                      [bind, str(volume), mount["mountPath"]])
            place.address, place.device = end.address, end.device
            return place

        start(init["command"], enter(carrier, init), uwarp=False).succeed()
        return enter(application, main)


def test_deployment(built, image, start, namespaces, tmp_path):
    """Two pods talk, whose image knows nothing of uwarp: it is what the init container brings."""
    manifest = yaml.safe_load(recipes.blocks()["deployment.yaml"])["spec"]
    assert manifest["replicas"] == 2
    spec = manifest["template"]["spec"]
    image.run("apt-get update && apt-get install -y --no-install-recommends rdmacm-utils")
    assert not list(image.root.glob("usr/lib/*/libisal.so*"))
    pods = Pods(spec, namespaces, built("carrier.Dockerfile"), image, tmp_path, start)
    main = spec["containers"][0]
    env = {entry["name"]: entry["value"] for entry in main["env"]}
    server = start(main["command"], pods.link.server, uwarp=False, env=env)
    places.wait_listening(server, RPING_PORT)
    text = (recipes.PAGES / "kubernetes.md").read_text()
    client = re.search(r"`kubectl exec deploy/rdma -- (.*?)`", text)[1]
    command = client.replace("ADDRESS", pods.link.server.address).split()
    for _ in range(2):
        output = start(command, pods.link.client, uwarp=False, env=env).succeed()
        assert output.count("ping data: ") == 3, output
    assert server.running(), "rping -P goes on"


def test_github_actions(image):
    """The workflow, and the composite action that it uses."""
    steps = yaml.safe_load(recipes.blocks()[".github/workflows/rdma.yml"])["jobs"]["rdma"]["steps"]
    action = yaml.safe_load((places.ROOT / "action" / "action.yml").read_text())
    job = recipes.Job(image)
    used, output = [], ""
    for step in steps:
        if "run" in step:
            output = job.run(step, {})
        else:
            used.append(step["uses"].split("@")[0])
        if used and used[-1].endswith("/uwarp/action"):
            *_, told = job.use(action, step.get("with", {}))
            assert "This machine is ready" in told
            used.append("")
    assert used == ["actions/checkout", "OWNER/uwarp/action", ""]
    assert output.count("ping data: ") == 10, output
    # The input is in effect for the steps behind the action.
    job.use(action, {"persona": "roce"})
    assert "InfiniBand" in job.run({"run": "apt-get install -y ibverbs-utils >/dev/null && "
                                           "uwarp-run ibv_devinfo -d uwarp_lo"}, {})


def test_gitlab(image):
    job = yaml.safe_load(recipes.blocks()[".gitlab-ci.yml"])["rdma"]
    lines = [line for line in job["before_script"] + job["script"] if "git clone" not in line]
    image.folder = "/job"
    recipes.copy_sources(image.path("uwarp"))
    output = image.run("\n".join(lines))
    assert output.count("ping data: ") == 10, output


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The packages, built in a bare Debian as debian.md says."""
    folder = tmp_path_factory.mktemp("packages")
    image = recipes.Image(folder / "root", recipes.base_root("bookworm"))
    image.folder = "/build/uwarp"
    recipes.copy_sources(image.path("."))
    image.run("apt-get update")
    image.run(recipes.blocks()["build-debs.sh"])
    made = folder / "debs"
    made.mkdir()
    for deb in image.path("/build").glob("*.deb"):
        deb.rename(made / deb.name)
    subprocess.run(["rm", "-rf", image.root], check=True)
    return made


@pytest.fixture
def installed(image, packages):
    """A bare Debian with the packages, installed as debian.md says."""
    image.folder = "/debs"
    image.path(".").mkdir()
    for deb in packages.iterdir():
        subprocess.run(["cp", deb, image.path(".")], check=True)
    image.run("apt-get update")
    output = image.run(recipes.blocks()["install-debs.sh"])
    assert "This machine is ready" in output
    return image


def test_debian_packages(installed, start, pair, pod, tmp_path):
    installed.run("apt-get install -y --no-install-recommends perftest")
    link = contained(pod, tmp_path, installed)
    command = ["ib_write_bw", "-F", "-p", "{port}"]
    _, output = pair(link, command, command + ["{address}"])
    assert report.rows(output), output


def test_autopkgtest_of_a_foreign_package(installed):
    """Of a package that has nothing to do with uwarp but for these tests, by Debian's autopkgtest. It is
    given the package itself, too, as the page's "@" asks for it."""
    source = pathlib.Path("/foreign")
    for name in ("debian/tests/control", "debian/tests/rdma"):
        path = installed.path(source / name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(recipes.blocks()[name])
        path.chmod(0o755)
    (installed.path(source) / "debian/control").write_text(
        "Source: foreign\nMaintainer: A Maintainer <maintainer@example.org>\n"
        "Standards-Version: 4.6.2\n\n"
        "Package: foreign\nArchitecture: all\nDescription: a package of another maintainer\n")
    (installed.path(source) / "debian/changelog").write_text(
        "foreign (1) unstable; urgency=low\n\n  * First.\n\n"
        " -- A Maintainer <maintainer@example.org>  Sat, 01 Jan 2028 00:00:00 +0000\n")
    binary = installed.path("/binary/DEBIAN")
    binary.mkdir(parents=True)
    (binary / "control").write_text(
        "Package: foreign\nVersion: 1\nArchitecture: all\n"
        "Maintainer: A Maintainer <maintainer@example.org>\n"
        "Description: a package of another maintainer\n")
    installed.run("apt-get install -y --no-install-recommends autopkgtest rdmacm-utils dpkg-dev")
    installed.run("dpkg-deb --build /binary /foreign_1_all.deb")
    installed.folder = str(source)
    output = installed.run("mkdir -p /tmp && "
                           "autopkgtest --no-built-binaries /foreign_1_all.deb ./ -- null 2>&1")
    assert re.search(r"^rdma +PASS$", output, re.M), output
    assert output.count("ping data: ") == 10, output
