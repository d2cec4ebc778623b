# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""nfs-rdma here, Linux's NFS server over RDMA and siw in the guest."""

import hashlib
import os
import random
import re
import subprocess

import pytest

import vm
from vm import places

NFS_RDMA = places.BUILD / "bin" / "nfs-rdma"
SEVERAL_WRITES = places.BUILD / "tests" / "several_writes"
URL = f"rdma://{vm.GUEST_ADDRESS}/export"
SLOW_SECONDS = 300

PRIVATE_DATA = {"RFC 8797": [], "no private data": ["--no-private-data"]}

each_version = pytest.mark.parametrize("version", [3, 4])


@pytest.fixture(scope="module")
def server(machine):
    if machine.form != "qemu":
        pytest.skip("User Mode Linux is built without the NFS server")
    listens = machine.guest.run("/lab/nfs_server", SLOW_SECONDS)
    assert "rdma 20049" in listens, listens
    return machine.guest


@pytest.fixture
def run(machine, server):
    """run(arguments) -> stdout and stderr of a client that must succeed."""

    def start(*arguments):
        command = [*machine.host.enter, str(places.UWARP_RUN), str(NFS_RDMA), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SLOW_SECONDS,
                              check=False)
        assert done.returncode == 0, (arguments, done)
        return done.stdout, done.stderr

    return start


def make_tree(root):
    (root / "a" / "b").mkdir(parents=True)
    for number, size in enumerate((0, 1, 999, 4096, 65_537, 1 << 20, 5_000_003)):
        (root / "a" / f"file {number}").write_bytes(random.Random(number).randbytes(size))
    (root / "a" / "b" / "link").symlink_to("../file 1")
    (root / "many").mkdir()
    for number in range(150):
        (root / "many" / f"{'n' * 60}{number}").write_text(str(number))


def tree_of(root):
    return {path.relative_to(root): os.readlink(path) if path.is_symlink()
            else path.read_bytes() if path.is_file() else None
            for path in sorted(root.rglob("*"))}


@pytest.mark.parametrize("private_data", PRIVATE_DATA)
@each_version
def test_tree_there_and_back(run, server, tmp_path, version, private_data):
    options = ["--nfs-version", version, *PRIVATE_DATA[private_data]]
    make_tree(tmp_path / "tree")
    _, said = run("-v", *options, "put", "-r", tmp_path / "tree", URL)
    threshold = "1024" if PRIVATE_DATA[private_data] else "4096"
    assert f"inline threshold {threshold} to the server, {threshold} to the client" in said, said
    # What the server itself says of a file.
    source = tmp_path / "tree" / "a" / "file 6"
    sums = [re.match(r"\w+", text)[0] for text in
            (server.run("sha256sum '/export/tree/a/file 6'"),
             subprocess.run(["sha256sum", source], capture_output=True, text=True,
                            check=True).stdout)]
    assert sums[0] == sums[1]
    run(*options, "get", "-r", f"{URL}/tree", tmp_path / "back")
    assert tree_of(tmp_path / "back") == tree_of(tmp_path / "tree")
    run(*options, "rm", "-r", f"{URL}/tree")
    assert run("ls", URL)[0] == ""


def test_server_s_exports(run):
    assert run("exports", URL)[0].split()[0] == "/export"


@each_version
def test_commands(run, version):
    def nfs(*arguments):
        return run("--nfs-version", version, *arguments)[0]

    assert f"NFS version {version} answers" in nfs("null", URL)
    nfs("mkdir", "-p", f"{URL}/one/two")
    assert "type: directory\n" in nfs("stat", f"{URL}/one")
    assert nfs("ls", "-l", f"{URL}/one").startswith("drwxr-xr-x")
    assert nfs("ls", URL) == "one\n"
    nfs("rm", "-r", f"{URL}/one")
    assert nfs("ls", URL) == ""


@each_version
def test_large_file(run, tmp_path, version):
    source = tmp_path / "large"
    source.write_bytes(random.Random(1).randbytes(64 << 20))
    options = ["--nfs-version", version]
    run(*options, "put", source, f"{URL}/large")
    run(*options, "get", f"{URL}/large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    run(*options, "rm", f"{URL}/large")


@each_version
def test_lengths_that_xdr_pads(run, server, tmp_path, version):
    """Read and Write chunks do not carry the padding behind data (RFC 8166, section 3.4.5.2)."""
    tree = tmp_path / "odd"
    tree.mkdir()
    # Inside a Send, around the inline threshold, and as chunks; with one and with several requests.
    for size in (1, 2, 3, 5, 601, 899, 902, 903, 1021, 4095, 4097, 20_001, 20_002, 20_003):
        (tree / str(size)).write_bytes(random.Random(size).randbytes(size))
    options = ["--nfs-version", version, "--no-private-data"]
    for size in ("7777", "1M"):
        run(*options, "--size", size, "put", "-r", tree, URL)
        sums = server.run("cd /export/odd && sha256sum *").splitlines()
        expected = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
                    for path in tree.iterdir()]
        assert sorted(sums) == sorted(expected)
        run(*options, "--size", size, "get", "-r", f"{URL}/odd", tmp_path / f"back {size}")
        assert tree_of(tmp_path / f"back {size}") == tree_of(tree)
        run(*options, "rm", "-r", f"{URL}/odd")


@pytest.mark.parametrize("length", [7, 5001, 20_002])
def test_what_follows_a_read_chunk(machine, server, run, tmp_path, length):
    """An operation behind the data, whose padding is not sent. Linux 6.1 decodes several Read chunks
    in one call wrongly, of any lengths."""
    url = f"{URL}/{length}"
    done = subprocess.run([*machine.host.enter, str(places.UWARP_RUN), str(SEVERAL_WRITES), url,
                           str(length)], capture_output=True, text=True, timeout=SLOW_SECONDS,
                          check=False)
    assert (done.stdout, done.stderr) == ("Read chunks 1\n", ""), done
    run("get", url, tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == b"a" * length
    run("rm", url)
