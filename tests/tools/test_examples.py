# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The programs of docs/examples, built as a user of the installed libraries builds them and run from
an installation in a folder of the test. The whole project must be built: ./build.sh."""

import os
import re
import shlex
import subprocess

import pytest

import places

EXAMPLES = places.ROOT / "docs" / "examples"
PYTHON = "/usr/bin/python3"  # Debian's, which has pyverbs
BUILD_SECONDS = 300  # a hang guard


def run(command, **more):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, timeout=BUILD_SECONDS, **more)
    assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An installation of the build; its prefix."""
    root = tmp_path_factory.mktemp("installed")
    run(["cmake", "--install", places.BUILD], env=os.environ | {"DESTDIR": str(root)})
    cache = (places.BUILD / "CMakeCache.txt").read_text()
    prefix = re.search(r"^CMAKE_INSTALL_PREFIX:PATH=/(.*)$", cache, re.M)[1]
    return root / prefix


@pytest.fixture(scope="module")
def link(installed):
    """Both ends on loopback, under the installed uwarp-run."""
    link = places.loopback()
    link.server.uwarp_run = installed / "bin" / "uwarp-run"
    return link


@pytest.fixture(scope="module")
def built(installed, tmp_path_factory):
    """The examples, built by their own CMake project with the packages uwarp and rpcrdma."""
    folder = tmp_path_factory.mktemp("examples")
    run(["cmake", "-S", EXAMPLES, "-B", folder, f"-DCMAKE_PREFIX_PATH={installed}",
         "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"])
    run(["cmake", "--build", folder])
    return folder


@pytest.fixture(params=["iwarp", "roce"])
def env(request):
    return {"UWARP_PERSONA": request.param}


def test_write_with_immediate(built, link, pair, env):
    program = built / "write_with_immediate"
    server, _ = pair(link, [program, "{port}"], [program, "{port}", "{address}", "here it is"],
                     env=env)
    assert server == "10 bytes, immediate 42: here it is\n"


def test_atomics(built, link, start, port, env):
    """What two clients add at the same time is all counted."""
    program = built / "atomics"
    server = start([program, port, 2], link.server, env=env)
    places.wait_listening(server, port)
    clients = [start([program, port, link.server.address, 500], link.client, env=env)
               for _ in range(2)]
    for client in clients:
        client.succeed()
    assert server.succeed() == "counter 1000, largest ticket 1000\n"


def test_direct_verbs(built, link, start):
    assert "uwarp_lo: direct verbs\n" in start([built / "direct_verbs"], link.client).succeed()


def test_rpc_echo(built, link, start, env):
    program = [built / "rpc_echo", link.server.address]
    assert start(program, link.client, env=env).succeed() == "hello over RDMA\n"


def test_another_version_is_refused(installed, tmp_path):
    """find_package takes no version that may have other interfaces."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(none LANGUAGES C)\n"
        "find_package(uwarp 99 QUIET)\nfind_package(rpcrdma 99 QUIET)\n"
        "message(STATUS \"uwarp ${uwarp_FOUND} ${uwarp_CONSIDERED_VERSIONS}"
        " rpcrdma ${rpcrdma_FOUND}\")\n")
    output = run(["cmake", "-S", tmp_path, "-B", tmp_path / "build",
                  f"-DCMAKE_PREFIX_PATH={installed}"])
    version = run([installed / "bin" / "uwarp-run", "--version"]).split()[1]
    assert f"uwarp 0 {version} rpcrdma 0" in output


@pytest.mark.parametrize("module, source", [("uwarp", "direct_verbs.c"), ("rpcrdma", "rpc_echo.cc")])
def test_pkg_config(installed, link, start, tmp_path, module, source):
    """--define-prefix: the installation is not where the build was configured for."""
    (folder,) = {path.parent for path in installed.glob("lib*/**/pkgconfig/uwarp.pc")}
    flags = run(["pkg-config", "--define-prefix", "--cflags", "--libs", module],
                env=os.environ | {"PKG_CONFIG_PATH": str(folder)})
    assert f"-I{installed}/include" in flags
    compiler = "cc" if source.endswith(".c") else "c++ -std=c++20"
    run([*compiler.split(), "-o", tmp_path / "program", EXAMPLES / source, *shlex.split(flags)])
    output = start([tmp_path / "program"], link.client,
                   env={"LD_LIBRARY_PATH": folder.parent}).succeed()
    assert "uwarp_lo: direct verbs" in output or output == "hello over RDMA\n"


def test_ping_pong(link, pair, env):
    command = [PYTHON, EXAMPLES / "ping_pong.py", "{port}"]
    _, client = pair(link, command, command + ["{address}"], env=env)
    assert re.fullmatch(r"1000 rounds of 64 bytes, \d+\.\d us one way\n", client)


def test_key_value_store(link, pair, env):
    command = [PYTHON, EXAMPLES / "key_value_store.py", "{port}"]
    words = ["red=apple", "yellow=banana", "red=cherry", "red", "yellow", "blue"]
    server, client = pair(link, command, command + ["{address}", *words], env=env)
    assert client == "red: cherry\nyellow: banana\nblue: \n"
    assert sorted(server.splitlines()) == ["red=cherry", "yellow=banana"]
