# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Runs the recipes of docs/recipes without a container engine: images are folders, made from
Debian's own packages by debootstrap, and commands run in them by bubblewrap, as root or as a user
without rights on a read-only root. Needs root and the network."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

import places

PAGES = places.ROOT / "docs" / "recipes"
MIRROR = "http://deb.debian.org/debian"
RELEASES = {"debian:12": "bookworm"}
# Debian's packages in place of Fedora's, whose images are not available here.
INSTEAD_OF_DNF = {
    "build": "apt-get update && bash -c '. tests/packages.sh; install_packages \"${BUILD_PACKAGES[@]}\"'",
    "run": "apt-get update && apt-get install -y --no-install-recommends librdmacm1 "
           "libnl-route-3-200 libisal2 libstdc++6 perftest rdmacm-utils",
}
BUILD_SECONDS = 1800  # a hang guard
USERS = {"nobody": (65534, 65534)}


def blocks():
    """Name of the file -> text of each block of code on the pages that begins with "# FILE"."""
    return {name: text for page in sorted(PAGES.glob("*.md")) for name, text in
            re.findall(r"^```\w*\n(?:#|//) (\S+)\n(.*?)^```", page.read_text(), re.M | re.S)}


def sources():
    """The files of the project, as a clone would have them."""
    listed = subprocess.run(["git", "-C", places.ROOT, "ls-files", "-z", "--cached", "--others",
                             "--exclude-standard"], capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if (places.ROOT / name).is_file()]


def copy_sources(target):
    for name in sources():
        to = target / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(places.ROOT / name, to)


def base_root(release):
    """A bare root file system of the release, made once per build folder."""
    root = places.BUILD / "roots" / release
    if not root.exists():
        building = root.with_suffix(".building")
        subprocess.run(["rm", "-rf", building], check=True)
        building.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["debootstrap", "--variant=minbase", release, building, MIRROR], check=True,
                       stdout=subprocess.DEVNULL, timeout=BUILD_SECONDS)
        building.rename(root)
    return root


class Image:
    """A root file system with the settings that a Dockerfile gives it."""

    def __init__(self, root, base):
        self.root = pathlib.Path(root)
        self.root.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--reflink=auto", base, self.root], check=True)
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                            "HOME": "/root"}
        self.folder = "/"
        self.user = "root"
        self.entry = []

    def command(self, argv, more=()):
        """What runs argv in the image as root of it, with the network of this machine."""
        return ["bwrap", "--bind", str(self.root), "/", "--dev", "/dev", "--proc", "/proc",
                "--tmpfs", "/dev/shm", "--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf",
                "--unshare-pid", "--die-with-parent", "--cap-add", "ALL", "--clearenv",
                *[part for key, value in self.environment.items()
                  for part in ("--setenv", key, value)],
                "--chdir", self.folder, *more, *map(str, argv)]

    def run(self, script, seconds=BUILD_SECONDS, more=(), shell="sh"):
        """Its output; a status other than 0 fails the test."""
        done = subprocess.run(self.command([shell, "-ec", script], more), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              timeout=seconds, preexec_fn=places.die_with_parent)
        assert done.returncode == 0, f"status {done.returncode}: {script}\n{done.stdout[-6000:]}"
        return done.stdout

    def size(self):
        """Bytes of its files, without the package manager's cache and lists, which images of Debian
        do not keep."""
        kept = subprocess.run(["du", "-s", "-B1", "-x", "--exclude=./var/cache/apt",
                               "--exclude=./var/lib/apt/lists", "."], cwd=self.root,
                              capture_output=True, text=True, check=True)
        return int(kept.stdout.split()[0])

    def path(self, inside):
        """Where a path inside the image is outside."""
        return self.root / os.path.normpath(os.path.join(self.folder, inside)).lstrip("/")


def build_dockerfile(text, folder, images=None):
    """Does what the instructions say; the last stage's image. Knows what our pages use. `images`:
    those that were built before, by name."""
    stages, image = {}, None
    for number, line in enumerate(instructions(text)):
        word, rest = line.split(None, 1)
        if word == "FROM":
            name = rest.split()
            known = (images or {}).get(name[0])
            base = known.root if known else base_root(RELEASES[name[0]])
            image = Image(folder / f"stage{number}", base)
            if known:
                image.environment = dict(known.environment)
            stages[name[2] if len(name) > 2 else str(number)] = image
        elif word == "RUN":
            image.run(rest)
        elif word == "WORKDIR":
            image.folder = rest
            image.path(".").mkdir(parents=True, exist_ok=True)
        elif word == "ENV":
            image.environment |= dict(part.split("=", 1) for part in shlex.split(rest))
        elif word == "USER":
            image.user = rest
        elif word == "ENTRYPOINT":
            image.entry = re.findall(r'"([^"]*)"', rest)
        elif word == "COPY":
            copy(image, stages, rest.split())
        else:
            raise AssertionError(f"an instruction that is not known here: {line}")
    return image


def on_debian(text):
    """A Dockerfile for Fedora with Debian's image and packages instead."""
    lines, stage = [], ""
    for line in instructions(text):
        if line.startswith("FROM fedora:"):
            stage = "build" if line.endswith(" AS build") else "run"
            line = re.sub(r"fedora:\d+", "debian:12", line)
        elif line.startswith("RUN dnf "):
            line = f"RUN {INSTEAD_OF_DNF[stage]}"
        lines.append(line)
    return "\n".join(lines)


def instructions(text):
    joined = re.sub(r"\\\n", " ", text)
    return [line.strip() for line in joined.splitlines() if line.strip() and line[0] != "#"]


def copy(image, stages, words):
    if words[0].startswith("--from="):
        source = stages[words[0].removeprefix("--from=")]
        subprocess.run(["cp", "-a", f"{source.path(words[1])}/.", image.path(words[2])], check=True)
    else:
        assert words == [".", "."], f"copies the whole project only: {words}"
        copy_sources(image.path("."))


class Job:
    """A job of GitHub: steps that run in an image, each with the variables and the PATH that those
    before it have asked for."""

    def __init__(self, image):
        self.image = image
        image.folder = "/job"
        self.files = {"GITHUB_PATH": "/path", "GITHUB_ENV": "/environment"}
        for inside in self.files.values():
            image.path(inside).write_text("")
        image.path("/action-source").mkdir()
        copy_sources(image.path("/action-source"))
        image.path("/job").mkdir()

    def run(self, step, expressions):
        """Its output. `expressions`: what stands for each ${{ ... }}."""
        image = self.image
        asked = dict(line.split("=", 1) for line in
                     image.path("/environment").read_text().splitlines())
        paths = image.path("/path").read_text().split()
        step_env = {key: expressions.get(value, value) for key, value in
                    step.get("env", {}).items()}
        before = dict(image.environment)
        image.environment |= asked | self.files | {"GITHUB_ACTION_PATH": "/action-source/action"}
        image.environment |= step_env | {"PATH": ":".join([*paths[::-1], before["PATH"]])}
        try:
            return image.run(step["run"], shell=step.get("shell", "sh"))
        finally:
            image.environment = before

    def use(self, action, inputs):
        """A composite action whose steps have nothing but commands."""
        values = {name: declared.get("default") for name, declared in action["inputs"].items()}
        assert inputs.keys() <= values.keys(), "GitHub warns of inputs that are not declared"
        expressions = {f"${{{{ inputs.{name} }}}}": value
                       for name, value in (values | inputs).items()}
        assert action["runs"]["using"] == "composite"
        return [self.run(step, expressions) for step in action["runs"]["steps"]]
