# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Applications of Debian 12 on uwarp, as docs/applications.md has them. What is marked `applications`
is left to ./test.sh --applications; the rest is a sample of it that takes some seconds."""

import glob
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess

import pytest

import places

ROCE = {"UWARP_PERSONA": "roce"}
applications = pytest.mark.applications


def needs(program):
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed")


# ---- fio

FIO = ["fio", "--ioengine=rdma", "--bs=64k", "--size=8m", "--output-format=json"]
FIO_VERBS = ["write", "read", "send"]


@pytest.fixture
def fio(start, port):
    """fio(link, verb, options...) -> the reports of the server and of the client. A server reads and
    a client writes, with any verb; a client waits half a second before it begins."""

    def listens(process):
        # Each job has a session of its own, so its sockets are not found by the process group.
        tables = "".join(pathlib.Path(f"/proc/{process.pid}/net/{table}").read_text()
                         for table in ("tcp", "tcp6"))
        return re.search(rf":{port:04X} \S+ {places.LISTEN} ", tables)

    def report(process):
        output = process.succeed()
        return json.loads(output[output.index("{\n"):])["jobs"][0]

    def blocks(options):
        """How many blocks the last --size and --bs of the options make."""
        size, block = (re.findall(rf"^--{option}=(\d+)([km]?)$", "\n".join(options), re.M)[-1]
                       for option in ("size", "bs"))
        number = {"": 0, "k": 10, "m": 20}
        return (int(size[0]) << number[size[1]]) // (int(block[0]) << number[block[1]])

    def run(link, verb, *options, env=None):
        common = [*FIO, f"--port={port}", *options]
        # A server that polls its last receives and the flush of the others in one go drops the count of
        # both and waits for ever. So the client pauses behind its last block.
        pause = ["--thinktime=100000", f"--thinktime_blocks={blocks(common)}"]
        server = start([*common, "--name=server", "--rw=read", "--iodepth=16"], link.server, env=env)
        places.wait_until(lambda: listens(server) or not server.running(), lambda: str(server))
        client = start([*common, "--name=client", "--rw=write", "--iodepth=4", f"--verb={verb}",
                        f"--hostname={link.server.address}", *pause], link.client, env=env)
        return report(client), report(server)

    return run


@needs("fio")
@pytest.mark.parametrize("verb", FIO_VERBS)
def test_fio(fio, loopback, verb):
    client, server = fio(loopback, verb)
    assert client["error"] == server["error"] == 0
    assert client["write"]["io_bytes"] == 8 << 20
    if verb == "send":
        assert server["read"]["io_bytes"] == 8 << 20


@needs("fio")
def test_fio_verifies_what_was_sent(fio, loopback):
    _, server = fio(loopback, "send", "--verify=crc32c", "--verify_fatal=1",
                    "--verify_state_save=0")
    assert server["error"] == 0 and server["read"]["io_bytes"] == 8 << 20


@needs("fio")
@applications
@pytest.mark.parametrize("persona", [{}, ROCE], ids=["iwarp", "roce"])
@pytest.mark.parametrize("verb", FIO_VERBS)
@pytest.mark.parametrize("size", ["--bs=512", "--bs=1m"])
def test_fio_everywhere(fio, link, verb, size, persona):
    client, server = fio(link, verb, size, "--size=32m", env=persona)
    assert client["error"] == server["error"] == 0
    assert client["write"]["io_bytes"] == 32 << 20


# ---- libfabric

PROVIDERS = {"msg": "verbs", "rdm": "verbs;ofi_rxm"}
DATAGRAM = {"dgram": "verbs"}
# Without -d libfabric takes the device with the lowest GUID, which may be that of loopback.
DGRAM = ["dgram", "-d", "{device}-dgram"]


@needs("fi_info")
def test_libfabric_lists_the_provider(start, veth):
    """It leaves out the loopback device, by the name of its netdev."""
    output = start(["fi_info", "-p", "verbs"], veth.server).succeed()
    found = set(re.findall(r"provider: (\S+)\n.*\n +domain: (\S+)", output))
    assert found == {("verbs", "uwarp_veth0"), ("verbs;ofi_rxm", "uwarp_veth0")}, output
    assert "FI_PROTO_IWARP" in output


def libfabric(pair, link, endpoint, *options, env=None):
    provider = (PROVIDERS | DATAGRAM)[endpoint]
    common = ["fi_pingpong", "-p", provider, "-e", endpoint, "-c", *options]
    for output in pair(link, [*common, "-B", "{port}"], [*common, "-P", "{port}", "{address}"],
                       env=env, seconds=2 * places.GUARD_SECONDS):
        sizes = re.findall(r"^(\d[\d.]*[kmg]?) +\d+ +=\d+ ", output, re.M)
        assert sizes, output
        yield sizes


@needs("fi_pingpong")
@pytest.mark.parametrize("endpoint", PROVIDERS)
def test_libfabric(pair, veth, endpoint):
    for sizes in libfabric(pair, veth, endpoint, "-I", 30):
        assert sizes == ["64", "256", "1k", "4k", "64k", "1m"]


@needs("fi_pingpong")
@applications
@pytest.mark.parametrize("persona", [{}, ROCE], ids=["iwarp", "roce"])
@pytest.mark.parametrize("endpoint", PROVIDERS)
def test_libfabric_all_sizes(pair, veth, endpoint, persona):
    for sizes in libfabric(pair, veth, endpoint, "-I", 50, "-S", "all", env=persona):
        assert sizes[-1] == "6m" and len(sizes) > 40, sizes


@needs("fi_pingpong")
def test_libfabric_datagrams(pair, veth):
    for sizes in libfabric(pair, veth, *DGRAM, "-I", 100, env=ROCE):
        assert sizes == ["64", "256", "1k", "4k"]


@needs("fi_pingpong")
@applications
def test_libfabric_datagrams_of_all_sizes(pair, veth):
    for sizes in libfabric(pair, veth, *DGRAM, "-I", 100, "-S", "all", env=ROCE):
        assert sizes[-1] == "4k" and len(sizes) > 10, sizes


# ---- UCX

RC_VERBS = ["-d", "{device}:1", "-x", "rc_verbs"]
UD_VERBS = ["-d", "{device}:1", "-x", "ud_verbs"]
UCX_SAMPLE = ["am_lat -s 8", "put_lat -s 8", "put_bw -s 65536 -D zcopy", "get -s 4096 -D bcopy",
              "get -s 65536 -D zcopy", "fadd -s 8", "cswap -s 8"]
UCX_MORE = ["am_lat -s 4000 -D bcopy", "am_lat -s 4000 -D zcopy", "am_bw -s 4000 -D bcopy",
            "put_bw -s 4096 -D bcopy", "put_bw -s 1000000 -D zcopy", "get -s 8 -D bcopy",
            "get -s 1000000 -D zcopy", "add_lat -s 8", "add_mr -s 8"]


UD_SAMPLE = ["am_lat -s 8", "am_bw -s 4000 -D zcopy"]
UD_MORE = ["am_bw -s 8", "am_lat -s 1024 -D bcopy", "am_lat -s 4000 -D zcopy"]
# None: no setting but the persona. UCX then takes shared memory for peers of its own machine. "ib" has
# all that it knows of this device, for these as well.
UCX_TLS = {"unset": None, "ib": "ib", "ud": "ud_verbs", "both": "rc_verbs,ud_verbs"}
UCP_SAMPLE = ["tag_lat", "tag_bw -s 100000"]
UCP_MORE = ["tag_bw", "tag_sync_lat", "ucp_am_lat", "ucp_am_bw -s 100000", "ucp_put_lat",
            "ucp_put_bw -s 65536", "ucp_get -s 65536", "stream_lat", "stream_bw -s 4096",
            "ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"]


def ucx(pair, link, test, count, *transport, env=None):
    """Of one transport (UCT) if it is named, else of UCP, which chooses by itself."""
    common = ["ucx_perftest", "-p", "{port}"]
    client = [*common, "{address}", *transport, "-n", count, "-w", 10, "-f", "-v", "-t",
              *test.split()]
    _, output = pair(link, common, client,
                     env=ROCE | {"UCX_WARN_UNUSED_ENV_VARS": "n"} | (env or {}))
    # A final report at the moment of an interval report has a rate of 0/0.
    figures = re.findall(r"^\s*(\d+)(?:,(?:[\d.]+|-?nan)){7}$", output, re.M)
    assert figures and int(figures[-1]) == count, output
    assert "ERROR" not in output, output


@needs("ucx_perftest")
@pytest.mark.parametrize("test", UCX_SAMPLE)
def test_ucx(pair, loopback, test):
    ucx(pair, loopback, test, 200, *RC_VERBS)


@needs("ucx_perftest")
@pytest.mark.parametrize("test", UD_SAMPLE)
def test_ucx_datagrams(pair, loopback, test):
    ucx(pair, loopback, test, 1000, *UD_VERBS)


def ucp(pair, link, test, transports):
    """Peers exchange the addresses of their workers, so UD sets up what RC there is. UCX sends long
    messages over two devices, and does not know that it cannot reach the other machine by the one of
    loopback."""
    devices = {f"{place.device}:1": None for place in (link.server, link.client)}
    chosen = {"UCX_NET_DEVICES": ",".join(devices)}
    if UCX_TLS[transports]:
        chosen["UCX_TLS"] = UCX_TLS[transports]
    ucx(pair, link, test, 200, env=chosen)


@needs("ucx_perftest")
@pytest.mark.parametrize("test", UCP_SAMPLE)
def test_ucx_by_worker_address(pair, veth, test):
    ucp(pair, veth, test, "ib")


@needs("ucx_perftest")
@applications
@pytest.mark.parametrize("transports", UCX_TLS)
@pytest.mark.parametrize("test", UCP_SAMPLE + UCP_MORE)
def test_ucx_by_worker_address_everywhere(pair, link, test, transports):
    ucp(pair, link, test, transports)


@needs("ucx_perftest")
@applications
@pytest.mark.parametrize("test", UCX_SAMPLE + UCX_MORE)
def test_ucx_everywhere(pair, link, test):
    # The server takes the name of its device from the client, so both must have one of that name.
    ucx(pair, places.Link(link.name, link.server, link.server), test, 2000, *RC_VERBS)


@needs("ucx_perftest")
@applications
@pytest.mark.parametrize("test", UD_SAMPLE + UD_MORE)
def test_ucx_datagrams_everywhere(pair, link, test):
    ucx(pair, places.Link(link.name, link.server, link.server), test, 5000, *UD_VERBS)


@needs("ucx_info")
def test_ucx_lists_the_transport(start, veth):
    output = start(["ucx_info", "-d"], veth.server, env=ROCE).succeed()
    section = output[output.index("Memory domain: uwarp_veth0"):]
    for transport in ("rc_verbs", "ud_verbs"):
        assert re.search(rf"Transport: {transport}\n# +Device: uwarp_veth0:1", section), output
    for operation in ("add", "fadd", "cswap"):
        assert f"atomic_{operation}: 64 bit" in section, section


UCP_EXAMPLE = pathlib.Path("/usr/share/doc/libucx-dev/examples/ucp_client_server.c")
UCP = ROCE | {"UCX_TLS": "rc_verbs,tcp", "UCX_SOCKADDR_TLS_PRIORITY": "tcp",
              "UCX_NET_DEVICES": "uwarp_lo:1,lo", "UCX_LOG_LEVEL": "info"}


@applications
@pytest.mark.skipif(not UCP_EXAMPLE.exists(), reason="libucx-dev is not installed")
@pytest.mark.parametrize("size", [8, 100_000, 5_000_000])
@pytest.mark.parametrize("kind", ["tag", "stream", "am"])
def test_ucx_client_and_server(start, loopback, port, tmp_path, kind, size):
    """Tag matching and its like, between programs that connect by address."""
    program = tmp_path / "ucp_client_server"
    subprocess.run(["cc", "-o", program, UCP_EXAMPLE, "-lucp", "-lucs"], check=True)
    common = [program, "-p", port, "-c", kind, "-s", size]
    server = start(common, loopback.server, env=UCP)
    places.wait_listening(server, port)
    client = start([*common, "-a", "127.0.0.1"], loopback.client, env=UCP)
    output = client.succeed()
    assert f"{kind}(rc_verbs/uwarp_lo:1)" in output, output[:4000]
    assert not re.search("UCX +ERROR", output + server.output)


# ---- Open MPI

MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca",
          "mpi_yield_when_idle", "1"]
MPI_PROGRAM = ["/usr/bin/python3", places.ROOT / "tests" / "tools" / "mpi_ping_pong.py"]


def mpirun(ranks):
    return [*MPIRUN, "-n", ranks, "--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca",
            "mtl_ofi_provider_include", "verbs;ofi_rxm"]


def mpi(start, place, ranks, *options):
    return start([*mpirun(ranks), *MPI_PROGRAM, *options], place, env={"FI_UNIVERSE_SIZE": ranks})


def has_mpi():
    return shutil.which("mpirun.openmpi") and glob.glob("/usr/lib/python3/dist-packages/mpi4py")


needs_mpi = pytest.mark.skipif(not has_mpi(), reason="python3-mpi4py is not installed")


@needs_mpi
def test_open_mpi(start, veth):
    output = mpi(start, veth.server, 4, "--short").succeed(2 * places.GUARD_SECONDS)
    assert "4 ranks: ok" in output, output


@needs_mpi
@applications
def test_open_mpi_in_full(start, veth):
    output = mpi(start, veth.server, 4, "--one-sided").succeed(10 * places.GUARD_SECONDS)
    assert "one-sided: ok" in output and "4 ranks: ok" in output, output


def mpi_over_ucx(start, place, *options, env=None):
    command = [*MPIRUN, "-n", 4, "--mca", "pml", "ucx", *options]
    output = start(command, place, env=ROCE | (env or {})).succeed(10 * places.GUARD_SECONDS)
    assert "4 ranks: ok" in output and "UCX  ERROR" not in output, output


@needs_mpi
def test_open_mpi_over_ucx(start, veth):
    """UCX_TLS=ib leaves out shared memory, so that all goes over the device."""
    mpi_over_ucx(start, veth.server, *MPI_PROGRAM, "--short", env={"UCX_TLS": "ib"})


@needs_mpi
@applications
@pytest.mark.parametrize("env", [{}, {"UCX_TLS": "ib"}, {"UCX_TLS": "ud"}], ids=["unset", "ib", "ud"])
def test_open_mpi_over_ucx_in_full(start, veth, env):
    mpi_over_ucx(start, veth.server, *MPI_PROGRAM, env=env)


@needs_mpi
@applications
def test_open_mpi_over_ucx_one_sided(start, veth):
    mpi_over_ucx(start, veth.server, "--mca", "osc", "ucx", *MPI_PROGRAM, "--one-sided")


# ---- MPICH

@needs("mpicc.mpich")
@applications
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("env", [{}, {"UCX_TLS": "ib"}, {"UCX_TLS": "ud"}], ids=["unset", "ib", "ud"])
def test_mpich(start, veth, tmp_path, env, ranks):
    """UCX_TLS=ib leaves out shared memory, UCX_TLS=ud connections too."""
    source = places.ROOT / "tests" / "tools" / "mpi_ring.c"
    subprocess.run(["mpicc.mpich", "-o", tmp_path / "ring", source], check=True)
    output = start(["mpirun.mpich", "-n", ranks, tmp_path / "ring"], veth.server,
                   env=ROCE | env).succeed(4 * places.GUARD_SECONDS)
    assert f"{ranks} ranks: ok" in output and "UCX  ERROR" not in output, output


# ---- hpcc

HPCC_INPUT = """\
HPLinpack benchmark input file
a small problem
HPL.out      output file name
8            device out
1            # of problem sizes
64           Ns
1            # of NBs
32           NBs
0            process mapping
1            # of process grids
1            Ps
2            Qs
16.0         threshold
1            # of panel fact
1            PFACTs
1            # of recursive stopping criterium
4            NBMINs
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs
1            # of broadcast
1            BCASTs
1            # of lookahead depth
1            DEPTHs
2            SWAP
64           swapping threshold
0            L1 form
0            U form
1            Equilibration
8            memory alignment
"""


OVER = {
    "libfabric": (mpirun(2), {"FI_UNIVERSE_SIZE": 2}),
    "ucx": ([*MPIRUN, "-n", 2, "--mca", "pml", "ucx"], ROCE | {"UCX_TLS": "ib"}),
}


@needs("hpcc")
@applications
@pytest.mark.parametrize("over", OVER)
def test_hpcc(start, veth, tmp_path, over):
    command, env = OVER[over]
    (tmp_path / "hpccinf.txt").write_text(HPCC_INPUT)
    start(["sh", "-c", f"cd {tmp_path} && exec \"$@\"", "sh", *command, "hpcc"], veth.server,
          env=env).succeed(4 * places.GUARD_SECONDS)
    report = (tmp_path / "hpccoutf.txt").read_text()
    assert "\nSuccess=1\n" in report and "PASSED" in report and "FAILED" not in report, report


# ---- QEMU

QEMU = ["qemu-system-x86_64", "-accel", "tcg", "-m", "64", "-display", "none", "-nodefaults", "-S"]


class Monitor:
    """The socket by which a virtual machine is told what to do (QMP)."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(places.GUARD_SECONDS)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r")
        self._lines.readline()
        self("qmp_capabilities")

    def __call__(self, command, **arguments):
        message = {"execute": command, "arguments": arguments}
        self._socket.sendall(json.dumps(message).encode() + b"\n")
        while True:
            answer = json.loads(self._lines.readline())
            if "event" not in answer:
                return answer["return"]

    def close(self):
        self("quit")
        self._lines.close()
        self._socket.close()


@needs("qemu-system-x86_64")
@applications
@pytest.mark.parametrize("persona", [{}, ROCE], ids=["iwarp", "roce"])
def test_qemu_migration(start, link, port, tmp_path, persona):
    """A virtual machine moves from one QEMU to another."""

    def machine(name, place, *options):
        path = tmp_path / name
        process = start([*QEMU, *options, "-qmp", f"unix:{path},server=on,wait=off"], place,
                        env=persona)
        places.wait_until(lambda: path.exists() or not process.running(), lambda: str(process))
        return process, Monitor(path)

    target, target_monitor = machine("target", link.server, "-incoming",
                                     f"rdma:{link.server.address}:{port}")
    source, source_monitor = machine("source", link.client)
    source_monitor("migrate", uri=f"rdma:{link.server.address}:{port}")
    states = [""]

    def over():
        states.append(source_monitor("query-migrate").get("status"))
        return states[-1] in ("completed", "failed")

    places.wait_until(over, lambda: f"{source}\n{target}")
    assert states[-1] == "completed", f"{source}\n{target}"
    source_monitor.close()
    target_monitor.close()
    source.succeed()
    target.succeed()


# ---- DAPL

# What the two providers of libdapl2 want to know: the one by rdma_cm the network device, the one
# that connects by a TCP socket of its own the RDMA device and its port.
DAPL = {"ofa": "{netdev} 0", "oscm": "uwarp_{netdev} 1"}
# Two threads with two endpoints each: Writes, Reads and Sends that alternate.
DAPL_TRANSACTION = """-i 100 -t 2 -w 2 client RW 4096 4 server SR 256 server RR 4096 4
                      client SR 256 server SR 256""".split()


@needs("dapltest")
@pytest.mark.parametrize("provider", DAPL)
def test_dapl(start, veth, tmp_path, provider):
    def dapltest(place, kind, *options):
        netdev = place.device.removeprefix("uwarp_")
        registry = tmp_path / f"{place.name}.conf"
        registry.write_text(f"uwarp u2.0 nonthreadsafe default libdapl{provider}.so.2 dapl.2.0 "
                            f'"{DAPL[provider].format(netdev=netdev)}" ""\n')
        return start(["dapltest", "-T", kind, "-D", "uwarp", *options], place,
                     env={"DAT_OVERRIDE": registry})

    def client(kind, *options):
        output = dapltest(veth.client, kind, "-s", veth.server.address, *options).succeed()
        assert "End of Work" in output and not re.search("fail|error", output, re.I), output

    server = dapltest(veth.server, "S")
    places.wait_until(lambda: "Service Point Ready" in server.output or not server.running(),
                      lambda: str(server))
    client("T", *DAPL_TRANSACTION)
    client("P", "-i", 500, "RW", 4096, 2)
    client("Q")
    server.succeed()


# ---- iSER: tgt and libiscsi

TARGET, INITIATOR = "iqn.2026-01.example:disk", "iqn.2026-01.example:client"


@needs("tgtd")
@needs("iscsi-inq")
@pytest.mark.skipif(os.geteuid() != 0, reason="tgtd is for root")
def test_iser(start, pod, tmp_path):
    """tgt's iSER target ignores its port option and listens on 3260, so it has a namespace of its
    own. Its TCP target would take that port, so that gets another one."""
    place = places.Place("pod", pod.enter(), "127.0.0.1", "::1", "uwarp_lo")
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(8 << 20))
    control = ["-C", os.getpid()]
    server = start(["tgtd", "-f", *control, "--iscsi", "portal=127.0.0.1:3999",
                    "--iser", "pool_sz_mb=128"], place)
    places.wait_listening(server, 3260)

    def administer(*options):
        start(["tgtadm", *control, "--lld", "iser", *options], uwarp=False).succeed()

    administer("--op", "new", "--mode", "target", "--tid", 1, "-T", TARGET)
    administer("--op", "new", "--mode", "logicalunit", "--tid", 1, "--lun", 1, "-b", disk)
    administer("--op", "bind", "--mode", "target", "--tid", 1, "-I", "ALL")
    administer("--op", "bind", "--mode", "target", "--tid", 1, "-Q", INITIATOR)
    url = f"iser://127.0.0.1:3260/{TARGET}/1"
    output = start(["iscsi-inq", "-i", INITIATOR, url], place).succeed()
    assert "Product:VIRTUAL-DISK" in output, output
    for test in ("SCSI.Read16.Simple", "SCSI.Write16.Simple"):
        output = start(["iscsi-test-cu", "-d", "-i", INITIATOR, "-t", test, url], place).succeed()
        assert re.search(r"tests +1 +1 +1 +0 ", output), output


# ---- Ceph

CEPH_CLUSTER = "6f0e53cc-6b1c-4f0e-9d0d-1f3f0f8c2a11"
CEPH_ADDRESS = "v1:{address}:6789"
CEPH_SETTINGS = """\
[global]
fsid = {cluster}
mon host = {monitor}
ms bind msgr2 = false
ms type = async+rdma
ms async rdma device name = {device}
ms async rdma cm = true
ms async rdma type = iwarp
auth cluster required = none
auth service required = none
auth client required = none
run dir = {folder}
log file = {folder}/$name.log
mon data = {folder}/mon
keyring = {folder}/keyring
admin socket = {folder}/$name.$pid.asok
"""


@needs("ceph-mon")
@needs("ceph")
@applications
def test_ceph(start, veth, tmp_path):
    """A monitor, and a client that asks for its status, over the messenger async+rdma."""
    monitor = CEPH_ADDRESS.format(address=veth.server.address)

    def settings(place):
        path = tmp_path / f"{place.name}.conf"
        path.write_text(CEPH_SETTINGS.format(cluster=CEPH_CLUSTER, monitor=monitor,
                                             device=place.device, folder=tmp_path))
        return ["-c", path]

    def prepare(*command):
        start(command, uwarp=False).succeed()

    keyring, monitors = tmp_path / "keyring", tmp_path / "monitors"
    prepare("ceph-authtool", "-C", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
    prepare("monmaptool", "--create", "--addv", "a", monitor, "--fsid", CEPH_CLUSTER,
            monitors)
    prepare("ceph-mon", *settings(veth.server), "--mkfs", "-i", "a", "--monmap", monitors,
            "--keyring", keyring)
    server = start(["ceph-mon", *settings(veth.server), "-i", "a", "-f"], veth.server)
    places.wait_listening(server, 6789)
    output = start(["ceph", *settings(veth.client), "--connect-timeout", 60, "-s"],
                   veth.client).succeed(2 * places.GUARD_SECONDS)
    assert "mon: 1 daemons, quorum a" in output, f"{output}\n{server}"


# ---- Go

GO_PROGRAM = """\
package main

// #cgo LDFLAGS: -libverbs
// #include <infiniband/verbs.h>
import "C"
import (
	"fmt"
	"unsafe"
)

func main() {
	var count C.int
	list := C.ibv_get_device_list(&count)
	for _, device := range unsafe.Slice(list, count) {
		context := C.ibv_open_device(device)
		domain := C.ibv_alloc_pd(context)
		fmt.Println(C.GoString(C.ibv_get_device_name(device)), domain != nil)
		C.ibv_dealloc_pd(domain)
		C.ibv_close_device(context)
	}
	C.ibv_free_device_list(list)
}
"""


@needs("go")
@applications
def test_go_with_cgo(start, loopback, tmp_path):
    source = tmp_path / "devices.go"
    source.write_text(GO_PROGRAM)
    subprocess.run(["go", "build", "-o", tmp_path / "devices", source], check=True, cwd=tmp_path,
                   env=os.environ | {"GOCACHE": str(tmp_path / "cache"), "GO111MODULE": "off"})
    assert "uwarp_lo true" in start([tmp_path / "devices"], loopback.server).succeed()


# ---- pyverbs

EXAMPLE = "/usr/share/doc/python3-pyverbs/examples/ib_devices.py"


@pytest.mark.skipif(not glob.glob(EXAMPLE), reason="python3-pyverbs has no examples here")
def test_pyverbs_example(start, loopback):
    output = start(["/usr/bin/python3", EXAMPLE], loopback.server).succeed()
    assert re.search(r"uwarp_lo +RNIC +IWARP", output), output
