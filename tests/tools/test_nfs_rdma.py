# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""nfs-rdma against its own server: bytes, names and errors, what the messages are made of, and what
is left when one side goes in the middle."""

import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess

import pytest

import places
from capture import Capture, needs_capture, tshark

NFS_RDMA = places.BUILD / "bin" / "nfs-rdma"
SEVERAL_WRITES = places.BUILD / "tests" / "several_writes"

each_version = pytest.mark.parametrize("version", [3, 4])
needs_uid_0 = pytest.mark.skipif(os.geteuid() != 0, reason="files of other users need root")


class Server:
    """`nfs-rdma serve` on a free port."""

    def __init__(self, start, content, *options, host="127.0.0.1"):
        self.process = start([NFS_RDMA, "serve", "--port", "0", "--bind", host, *options, content])
        places.wait_until(
            lambda: "serving " in self.process.output or not self.process.running(),
            lambda: str(self.process))
        assert self.process.running(), str(self.process)
        self.url = re.search(r"serving (rdma://\S+)", self.process.output)[1]
        self.port = int(re.search(r":(\d+)/", self.url)[1])


@pytest.fixture
def content(tmp_path):
    path = tmp_path / "content"
    path.mkdir()
    return path


@pytest.fixture
def serve(start, content):
    return lambda *options, **keywords: Server(start, content, *options, **keywords)


def run(*arguments, status=0):
    """stdout and stderr of a client that must end with this status."""
    done = subprocess.run([str(places.UWARP_RUN), str(NFS_RDMA), *map(str, arguments)],
                          capture_output=True, text=True, timeout=places.GUARD_SECONDS,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == status, (arguments, done)
    return done.stdout, done.stderr


def fails(*arguments, status=1):
    """The one line that a client says when it fails."""
    _, errors = run(*arguments, status=status)
    assert errors.count("\n") == 1 and errors.startswith("nfs-rdma: "), errors
    return errors


def random_bytes(size, seed=1):
    return random.Random(seed).randbytes(size)


def make_tree(root):
    root.mkdir(exist_ok=True)
    for number, size in enumerate((0, 1, 3, 1000, 4096, 70_001, 3 * (1 << 20) + 7)):
        (root / f"file {number}").write_bytes(random_bytes(size, number))
    (root / "run").write_bytes(b"#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "run").touch()
    (root / "empty").mkdir()
    deep = root / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "käse%20\t").write_text("x")
    (deep / "link").symlink_to("../../nowhere")
    (root / "link to directory").symlink_to("a")
    many = root / "many"
    many.mkdir()
    for number in range(300):
        (many / f"{'n' * 100}{number}").write_text(str(number))


def tree_of(root):
    """Path -> type, permissions and content."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("directory",)
        else:
            found[name] = ("file", path.stat().st_mode & 0o777, path.read_bytes())
    return found


def counted(errors, what):
    return int(re.search(rf"{what} (\d+)", errors)[1])


@each_version
def test_tree_there_and_back(serve, tmp_path, content, version):
    make_tree(tmp_path / "tree")
    server = serve()
    nfs = ["--nfs-version", version]
    run(*nfs, "put", "-r", tmp_path / "tree", server.url)
    run(*nfs, "get", "-r", f"{server.url}/tree", tmp_path / "back")
    assert tree_of(tmp_path / "back") == tree_of(tmp_path / "tree")
    # Once more, over what is there.
    run(*nfs, "put", "-r", tmp_path / "tree", server.url)
    run(*nfs, "get", "-r", f"{server.url}/tree/", tmp_path / "back" / "..")
    assert tree_of(tmp_path / "tree") == tree_of(tmp_path / "back")
    # The server keeps what it gets in memory.
    assert not list(content.iterdir())


@pytest.mark.parametrize("options", [["--inline", "1024"], ["--inline", "65536", "--size", "5000"],
                                     ["--no-private-data", "-j", "1"], ["-j", "64"],
                                     ["--nfs-version", "4", "--no-private-data"],
                                     ["--nfs-version", "4", "--size", "5001"]],
                         ids=" ".join)
def test_initial_content(serve, content, tmp_path, options):
    make_tree(content)
    server = serve("--inline", "65536")
    run("get", "-r", *options, server.url, tmp_path / "got")
    assert tree_of(tmp_path / "got") == tree_of(content)


def test_large_file(serve, tmp_path):
    data = random_bytes(96 << 20)
    (tmp_path / "large").write_bytes(data)
    server = serve()
    run("put", tmp_path / "large", f"{server.url}/large")
    run("get", f"{server.url}/large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data


def test_ipv6(serve, content, tmp_path):
    (content / "file").write_text("hello")
    server = serve(host="::1")
    assert server.url.startswith("rdma://[::1]:")
    run("get", f"{server.url}/file", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "hello"


@each_version
def test_commands(serve, content, version):
    def nfs(*arguments):
        return run("--nfs-version", version, *arguments)

    (content / "file").write_text("hello")
    (content / "link").symlink_to("file")
    url = serve().url
    assert f"NFS version {version} answers" in nfs("null", url)[0]
    assert nfs("exports", url)[0] == "/export\n"
    nfs("mkdir", f"{url}/one")
    nfs("mkdir", "-p", f"{url}/one/two/three")
    nfs("mkdir", "-p", f"{url}/one/two/three")
    assert nfs("ls", url)[0] == "file\nlink\none\n"
    long = nfs("ls", "-l", url)[0].splitlines()
    assert re.match(rf"-rw\S+ +1 +{os.geteuid()} +\d+ +5 .* file$", long[0]), long
    assert long[2].startswith("drwxr-xr-x"), long
    stat = nfs("stat", f"{url}/link")[0]
    assert "type: symbolic link\n" in stat and "target: file\n" in stat, stat
    assert "size: 5\n" in nfs("stat", f"{url}/file")[0]
    nfs("rm", f"{url}/file")
    nfs("rm", "-r", f"{url}/one")
    assert nfs("ls", url)[0] == "link\n"
    assert "no such file" in fails("stat", f"{url}/file")


def test_times_are_kept_on_demand(serve, tmp_path):
    url = serve().url
    source = tmp_path / "file"
    source.write_text("x")
    os.utime(source, (1_000_000_000, 1_234_567_890))
    run("put", "-p", source, f"{url}/file")
    assert "modified: 2009-02-13 23:31:30.0" in run("stat", f"{url}/file")[0]
    run("get", "-p", f"{url}/file", tmp_path / "back")
    assert (tmp_path / "back").stat().st_mtime == 1_234_567_890


@pytest.mark.parametrize("threshold", [1024, 4096])
@each_version
def test_attributes_need_sends_only(serve, content, version, threshold):
    (content / "file").write_text("x")
    _, errors = run("--nfs-version", version, "stat", "-v", "--inline", threshold,
                    f"{serve().url}/file")
    assert f"threshold {threshold} to the server, {threshold} to the client" in errors
    assert counted(errors, "calls") == counted(errors, "sends") == counted(errors, "receives")
    assert counted(errors, "Read chunks") == counted(errors, "Write chunks") == 0, errors


@pytest.mark.parametrize("threshold, chunks", [(1024, 1), (4096, 0)])
@each_version
def test_small_data_needs_a_chunk_only_below_its_size(serve, content, tmp_path, version, threshold,
                                                      chunks):
    (content / "file").write_bytes(random_bytes(2001))
    url = serve().url
    nfs = ["--nfs-version", version]
    _, errors = run(*nfs, "get", "-v", "--inline", threshold, f"{url}/file", tmp_path / "got")
    assert re.search(rf"Write chunks {chunks} \({chunks} used\)", errors), errors
    assert (tmp_path / "got").read_bytes() == (content / "file").read_bytes()
    _, errors = run(*nfs, "put", "-v", "--inline", threshold, tmp_path / "got", f"{url}/again")
    assert counted(errors, "Read chunks") == chunks, errors
    run("get", f"{url}/again", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (content / "file").read_bytes()


@pytest.mark.parametrize("lengths", [(4, 8), (1, 2, 3), (5001, 3, 70_002, 20_000), (7,)],
                         ids=str)
def test_several_read_chunks(serve, tmp_path, lengths):
    """Each is an item of its own, without the padding that XDR puts behind it."""
    url = serve().url
    done = subprocess.run([str(places.UWARP_RUN), str(SEVERAL_WRITES), f"{url}/file",
                           *map(str, lengths)], capture_output=True, text=True, check=False,
                          timeout=places.GUARD_SECONDS)
    assert (done.stdout, done.stderr) == (f"Read chunks {len(lengths)}\n", ""), done
    run("get", f"{url}/file", tmp_path / "got")
    expected = b"".join(bytes([ord("a") + i]) * length for i, length in enumerate(lengths))
    assert (tmp_path / "got").read_bytes() == expected


@each_version
def test_what_goes_wrong_is_said_in_one_line(serve, content, tmp_path, port, version):
    def fails_so(*arguments):
        return fails("--nfs-version", version, *arguments)

    (content / "file").write_text("x")
    (content / "directory").mkdir()
    url = serve("--memory", "1M").url
    target = tmp_path / "got"
    big = tmp_path / "big"
    big.write_bytes(bytes(2 << 20))
    base = url.removesuffix("/export")
    assert "unknown host" in fails_so("ls", "rdma://host.invalid/export")
    assert "refused" in fails_so("ls", f"rdma://127.0.0.1:{port}/export")
    # Version 3 says what exports there are instead.
    assert ("/export" if version == 3 else "no such file") in fails_so("ls", f"{base}/elsewhere")
    assert "no such file" in fails_so("get", f"{url}/missing", target)
    assert "is a directory" in fails_so("get", f"{url}/directory", target)
    assert "No such file" in fails_so("get", f"{url}/file", tmp_path / "missing" / "file")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in fails_so("get", f"{url}/file", tmp_path / "pipe")
    assert "not a regular file" in fails_so("put", tmp_path / "pipe", f"{url}/x")
    assert "No such file" in fails_so("put", tmp_path / "missing", f"{url}/x")
    assert "not a directory" in fails_so("put", big, f"{url}/file/x")
    assert "no space" in fails_so("put", big, f"{url}/big")
    assert "is a directory" in fails_so("put", content, f"{url}/x")
    fails("ls", "nfs://127.0.0.1/x", status=2)
    run("ls", status=2)
    run("--size", "0", "ls", url, status=2)
    run("--nfs-version", "5", "ls", url, status=2)
    run("no-such-command", status=2)
    assert not target.exists()
    assert run("ls", url)[0] == "directory\nfile\n"  # nothing unfinished


@needs_uid_0
@each_version
def test_permissions(serve, content, tmp_path, version):
    (content / "secret").write_text("x")
    (content / "secret").chmod(0o600)
    url = serve().url
    other = ["--nfs-version", version, "--uid", "1234", "--gid", "1234"]
    assert "permission denied" in fails("get", *other, f"{url}/secret", tmp_path / "got")
    assert "permission denied" in fails("put", *other, content / "secret", f"{url}/mine")
    assert "permission denied" in fails("rm", *other, f"{url}/secret")
    assert not (tmp_path / "got").exists()


@each_version
def test_read_only(serve, content, version):
    (content / "file").write_text("x")
    url = serve("--read-only").url
    nfs = ["--nfs-version", version]
    assert "read-only" in fails(*nfs, "put", content / "file", f"{url}/other")
    assert "read-only" in fails(*nfs, "rm", f"{url}/file")
    assert "read-only" in fails(*nfs, "mkdir", f"{url}/directory")


@pytest.fixture
def slow_transfer(start, serve, content, tmp_path):
    """A client in the middle of a get or put of 256 MiB."""

    def begin(direction, version=3):
        local = tmp_path / "local"
        local.mkdir()
        big = (content if direction == "get" else tmp_path) / "big"
        with big.open("wb") as file:
            file.truncate(256 << 20)
        server = serve()
        arguments = ["--nfs-version", version, "--size", "4096", "-j", "1"]
        if direction == "get":
            arguments += ["get", f"{server.url}/big", local / "big"]
        else:
            arguments += ["put", big, f"{server.url}/big"]
        client = start([NFS_RDMA, *arguments])

        def under_way():
            if direction == "get":
                return any(path.stat().st_size > 100_000 for path in local.iterdir())
            listing = run("ls", "-l", server.url)[0]
            return any(int(line.split()[4]) > 100_000 for line in listing.splitlines())

        places.wait_until(lambda: under_way() or not client.running(), lambda: str(client))
        assert client.running(), str(client)
        return server, client, local

    return begin


@pytest.mark.parametrize("direction", ["get", "put"])
@each_version
def test_server_killed(slow_transfer, version, direction):
    server, client, local = slow_transfer(direction, version)
    server.process.send(signal.SIGKILL)
    assert client.wait() == 1
    assert client.output.count("\n") == 1 and client.output.startswith("nfs-rdma: "), client.output
    assert not list(local.iterdir())


@pytest.mark.parametrize("version, number", [(3, signal.SIGINT), (3, signal.SIGTERM),
                                             (4, signal.SIGINT)])
@pytest.mark.parametrize("direction", ["get", "put"])
def test_interrupted(slow_transfer, direction, version, number):
    server, client, local = slow_transfer(direction, version)
    client.send(number)
    assert client.wait() == 128 + number
    assert client.output == "nfs-rdma: interrupted\n"
    assert not list(local.iterdir())
    assert run("ls", server.url)[0] == ("big\n" if direction == "get" else "")


def test_client_killed(slow_transfer):
    server, client, _ = slow_transfer("put")
    client.send(signal.SIGKILL)
    client.wait()
    names = run("ls", server.url)[0].split()
    assert len(names) == 1 and names[0].startswith(".big.nfs-rdma-"), names


def test_server_survives_noise(serve, content, tmp_path):
    (content / "file").write_text("x")
    server = serve()
    for seed in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as noise:
            noise.sendall(random_bytes(200, seed))
    run("get", f"{server.url}/file", tmp_path / "got")
    assert (tmp_path / "got").read_text() == "x"


def test_server_ends_cleanly(serve):
    server = serve("-v")
    run("ls", server.url)
    server.process.send(signal.SIGTERM)
    assert server.process.wait() == 0
    assert counted(server.process.output, "calls") > 2


@each_version
def test_bench(serve, version):
    output, _ = run("--nfs-version", version, "bench", "--json", "--seconds", "0.2",
                    "--file-size", "4M", "--size", "256k", "--thresholds", "1024,8192",
                    serve("--inline", "8192").url)
    low, high = json.loads(output)["results"]
    assert (low["server_to_client"], high["server_to_client"]) == (1024, 8192)
    for result in (low, high):
        assert result["sequential"]["requests"] > 0
        assert result["sequential"]["replies_with_write_chunk"] == result["sequential"]["requests"]
    assert low["random"]["replies_with_write_chunk"] == low["random"]["requests"] > 0
    assert high["random"]["replies_with_write_chunk"] == 0 < high["random"]["requests"]


def dissect(path, *arguments):
    """In two passes: in one, tshark 4.0 has not put a reply and its RDMA Writes together when it
    dissects the reply, and calls that malformed."""
    return tshark(path, "-2", *arguments)


OPERATIONS = {3: {"lookup": "3", "read": "6", "write": "7", "create": "8", "rename": "14",
                  "readdirplus": "17"},
              4: {"close": "4", "getattr": "9", "getfh": "10", "lookup": "15", "open": "18",
                  "open_confirm": "20", "putfh": "22", "putrootfh": "24", "read": "25",
                  "readdir": "26", "rename": "29", "savefh": "32", "setclientid": "35",
                  "setclientid_confirm": "36", "write": "38"}}


@needs_capture
@pytest.mark.parametrize("version, threshold", [(3, 1024), (4, 8192)])
def test_capture(start, serve, loopback, content, tmp_path, version, threshold, monkeypatch):
    monkeypatch.setenv("UWARP_SHM", "0")  # what goes by shared memory is on no link
    (content / "file").write_bytes(random_bytes(4093))
    server = serve("--inline", "8192")
    nfs = ["--nfs-version", version, "--inline", threshold]
    capture = Capture(start, loopback, server.port, tmp_path / "capture.pcapng")
    run(*nfs, "get", f"{server.url}/file", tmp_path / "got")
    run(*nfs, "put", tmp_path / "got", f"{server.url}/again")
    run(*nfs, "ls", server.url)
    capture.end()
    assert not dissect(capture.path, "-Y", "_ws.malformed")
    field = {3: "nfs.procedure_v3", 4: "nfs.opcode"}[version]
    seen = set(re.split(r"[\s,]+", dissect(capture.path, "-Y", "nfs && rpc.msgtyp == 0", "-T",
                                           "fields", "-e", field)))
    assert set(OPERATIONS[version].values()) <= seen, seen
    written = dissect(capture.path, "-Y", "rpcordma.writes_count > 0", "-T", "fields", "-e",
                      "rpcordma.writes_count")
    assert bool(written) == (threshold == 1024), written
