# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The files of docs/recipes and action/ against the schemas that their inventors publish, which needs npm
and the network: ./test.sh --containers. Each validator must also find a mistake."""

import pytest
import yaml

import places
import published_schemas
import recipes

pytestmark = [
    pytest.mark.containers,
    pytest.mark.skipif(bool(published_schemas.missing()), reason=published_schemas.missing() or "-"),
]


@pytest.fixture
def written(tmp_path):
    """written(name, text) -> the path of a file in a folder of its own."""
    def write(name, text):
        path = tmp_path / "schemas" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path
    return write


def test_schema_of_github(written):
    workflow = recipes.blocks()[".github/workflows/rdma.yml"]
    assert published_schemas.of_workflow(written("w.yml", workflow)) == ""
    assert "run-on" in published_schemas.of_workflow(
        written("w.yml", workflow.replace("runs-on", "run-on")))
    action = (places.ROOT / "action" / "action.yml").read_text()
    assert published_schemas.of_action(written("a.yml", action)) == ""
    assert "shell" in published_schemas.of_action(
        written("a.yml", action.replace("      shell: bash\n", "", 1)))


def test_schema_of_gitlab(written):
    job = recipes.blocks()[".gitlab-ci.yml"]
    assert published_schemas.of_gitlab(written(".gitlab-ci.yml", job)) == ""
    assert "before_scripts" in published_schemas.of_gitlab(
        written(".gitlab-ci.yml", job.replace("before_script:", "before_scripts:")))


def test_schema_of_kubernetes(tmp_path):
    manifest = yaml.safe_load(recipes.blocks()["deployment.yaml"])
    kind = f"{manifest['apiVersion']}/{manifest['kind']}"
    path = tmp_path / "deployment.json"
    assert published_schemas.of_kubernetes(kind, manifest, path) == ""
    manifest["spec"]["replicas"] = "two"
    assert "replicas must be integer" in published_schemas.of_kubernetes(kind, manifest, path)
