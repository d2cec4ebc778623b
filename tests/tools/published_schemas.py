# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Judges files by the schemas that their inventors publish, which come from the npm registry: GitHub's
own parser of workflows and actions, GitLab's schema as gitlab-ci-local brings it, and the OpenAPI
schema of Kubernetes as kubernetes-models has it."""

import json
import pathlib
import shutil
import subprocess

import places

PACKAGES = ["@actions/workflow-parser@0.3.61", "gitlab-ci-local@4.61.0", "kubernetes-models@5.1.0"]
FOLDER = places.BUILD / "npm"
INSTALL_SECONDS = 600  # a hang guard


def missing():
    """Why there are none here; empty if there are."""
    return "" if shutil.which("npm") and shutil.which("node") else "npm is not installed"


def modules():
    """The node_modules folder with the packages, which are installed once per build folder."""
    done = FOLDER / "installed"
    wanted = "\n".join(PACKAGES)
    if not done.exists() or done.read_text() != wanted:
        FOLDER.mkdir(parents=True, exist_ok=True)
        # No script of a package runs at the installation.
        subprocess.run(["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund",
                        "--prefix", FOLDER, *PACKAGES], check=True, timeout=INSTALL_SECONDS)
        done.write_text(wanted)
    return FOLDER / "node_modules"


def complaints(command, folder=None):
    """What a command that judges a file has printed; empty: it has nothing against it."""
    done = subprocess.run(list(map(str, command)), cwd=folder, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=places.GUARD_SECONDS)
    return "" if done.returncode == 0 else done.stdout or f"status {done.returncode}"


def _check(kind, path):
    script = pathlib.Path(__file__).with_name("schema_check.mjs")
    return complaints(["node", script, modules(), kind, path])


def of_workflow(path):
    return _check("workflow", path)


def of_action(path):
    return _check("action", path)


def of_kubernetes(kind, manifest, path):
    """`kind` as apps/v1/Deployment. The manifest is written to the path as JSON."""
    path.write_text(json.dumps(manifest))
    return _check(kind, path)


def of_gitlab(path):
    """The file must be .gitlab-ci.yml in a folder of its own, which becomes a git repository."""
    subprocess.run(["git", "init", "-q", path.parent], check=True)
    return complaints(["node", modules() / "gitlab-ci-local/src/index.js", "--list-csv"], path.parent)
