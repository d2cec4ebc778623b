# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""uwarp in containers: an unprivileged user without capabilities on a read-only root, under the seccomp
filters of container engines and of services. docs/containers.md says what they need."""

import re
import shutil
import subprocess

import pytest

import perftest_report as report
import places
import recipes
import sandbox

why_not = sandbox.missing()
pytestmark = pytest.mark.skipif(bool(why_not), reason=why_not or "-")

FILTERS = {
    "docker": sandbox.docker_filter,
    "old-docker": lambda: sandbox.docker_filter(sandbox.REFUSED_BY_OLD_DOCKER),
    "systemd": sandbox.systemd_filter,
}


@pytest.fixture(scope="module", params=FILTERS)
def contained(request, pod, tmp_path_factory):
    """Both ends in containers of one pod."""
    path = tmp_path_factory.mktemp("filter") / request.param
    place = sandbox.container(request.param, pod,
                              sandbox.write_filter(FILTERS[request.param](), path))
    return places.Link(request.param, place, place)


def test_it_is_a_container(start, contained):
    """What the other tests rely on: no rights, nothing to write to, the filter at work."""
    script = ("id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; "
              "touch /tmp/x /etc/x; ls /dev/infiniband; unshare -n true; true")
    output = start(["sh", "-c", script], contained.server, uwarp=False).succeed()
    assert output.splitlines()[0] == str(sandbox.UID)
    words = dict(line.split(":\t") for line in output.splitlines() if ":\t" in line)
    assert words == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    assert output.count("Read-only file system") == 2, output
    assert "unshare failed" in output and "/dev/infiniband" in output, output


def test_doctor_finds_no_problem(start, contained):
    start([places.BUILD / "bin" / "uwarp-doctor"], contained.server,
          uwarp=False).succeed()


@pytest.mark.parametrize("connect", [[], ["-R"]], ids=["raw", "cm"])
def test_perftest(pair, contained, connect):
    command = ["ib_write_bw", "-d", "{device}", "-F", "-n", "500", "-p", "{port}", *connect]
    _, client = pair(contained, command, command + ["{address}"])
    assert report.rows(client), client


@pytest.mark.parametrize("address", ["{address}", "{address6}"])
def test_rping(pair, contained, address):
    common = ["-a", address, "-p", "{port}", "-C", "5", "-V", "-v"]
    _, client = pair(contained, ["rping", "-s", *common], ["rping", "-c", *common])
    assert client.count("ping data: ") == 5, client


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("name", ["rdma-server.service"])
def test_units_are_understood(tmp_path, name):
    """Every line of the unit of docs/recipes, but for where the programs lie."""
    unit = tmp_path / name
    unit.write_text(re.sub(r"^(ExecStart=)\S+", rf"\g<1>{places.UWARP_RUN}", recipes.blocks()[name],
                           flags=re.M))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit],
                          capture_output=True, text=True, check=False, timeout=places.GUARD_SECONDS)
    ours = [line for line in done.stderr.splitlines() if name in line]
    assert done.returncode == 0 and not ours, done.stderr
