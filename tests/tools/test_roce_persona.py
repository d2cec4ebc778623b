# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Stock programs on devices that look like RoCE v2 adapters (UWARP_PERSONA=roce): libraries and
programs then take their InfiniBand branches, on both ends."""

import re
import signal

import pytest

import perftest_report as report
import places

ROCE = {"UWARP_PERSONA": "roce"}
PEER = places.BUILD / "tests" / "verbs_peer"
CONNECTS = {"raw": [], "cm": ["-R"]}
PERFTEST = {
    "send_bw": ["ib_send_bw"],
    "send_lat": ["ib_send_lat"],
    "write_bw": ["ib_write_bw"],
    "write_lat": ["ib_write_lat"],
    "read_bw": ["ib_read_bw"],
    "read_lat": ["ib_read_lat"],
    "atomic_bw": ["ib_atomic_bw"],
    "atomic_lat": ["ib_atomic_lat"],
    "send_bw_events": ["ib_send_bw", "-e"],
    "send_lat_events": ["ib_send_lat", "-e"],
    "send_bw_both_ways": ["ib_send_bw", "-b"],
    "write_bw_queue_pairs": ["ib_write_bw", "-q", "4"],
}
XRC = dict(PERFTEST)
SHARED = {
    "bw": ["ib_send_bw", "--use-srq"],
    "bw_queue_pairs": ["ib_send_bw", "--use-srq", "-q", "4"],
    "lat": ["ib_send_lat", "--use-srq"],
}


@pytest.fixture
def roce_pair(pair):
    return lambda *arguments, **keywords: pair(*arguments, env=ROCE, **keywords)


def perftest(roce_pair, link, command, *options):
    size = [] if "atomic" in command[0] else ["-s", "4096"]
    full = [*command, "-d", "{device}", "-p", "{port}", "-F", "-n", "500", *size, *options]
    server, client = roce_pair(link, full, full + ["{address}"])
    found = report.rows(client)
    assert found, f"no table in the client's output:\n{client}\n==== server\n{server}"
    assert "rror" not in client + server, f"{client}\n==== server\n{server}"


def skip_half(link, names, name):
    """Every other name on loopback, the rest over veth: each run of perftest finds out for a second how
    fast the processor is."""
    if list(names).index(name) % 2 == (link.name == "veth"):
        pytest.skip("tried on the other link")


def test_device(start, link):
    process = start(["ibv_devinfo", "-v", "-d", link.server.device], link.server, env=ROCE)
    output = process.succeed()
    assert "InfiniBand (0)" in output, output
    assert re.search(r"link_layer:\s+Ethernet", output), output
    assert "RoCE v2" in output, output


@pytest.mark.parametrize("tool", ["ibv_rc_pingpong", "ibv_srq_pingpong"])
@pytest.mark.parametrize("options", [[], ["-e"]], ids=["poll", "events"])
def test_pingpong(roce_pair, link, tool, options):
    command = [tool, "-d", "{device}", "-g", "0", "-p", "{port}", *options]
    for output in roce_pair(link, command, command + ["{address}"]):
        assert "iters in" in output, output


@pytest.mark.parametrize("connect", CONNECTS)
@pytest.mark.parametrize("name", PERFTEST)
def test_perftest(roce_pair, link, name, connect):
    if (link.name == "veth") == (connect == "cm") and name not in ("send_lat", "write_bw"):
        pytest.skip("loopback by rdma_cm, veth without: either is tried with all names")
    perftest(roce_pair, link, PERFTEST[name], *CONNECTS[connect])


@pytest.mark.parametrize("name", SHARED)
def test_shared_receive_queue(roce_pair, link, name):
    skip_half(link, SHARED, name)
    perftest(roce_pair, link, SHARED[name])


UNRELIABLE = {
    "send_bw": ["ib_send_bw"],
    "send_bw_byte": ["ib_send_bw", "-s", "1", "-n", "5000"],
    "send_bw_large": ["ib_send_bw", "-s", "1048576"],
    "send_bw_events": ["ib_send_bw", "-e"],
    "send_bw_both_ways": ["ib_send_bw", "-b"],
    "send_bw_few_receives": ["ib_send_bw", "-r", "16", "-n", "5000"],
    "send_bw_queue_pairs": ["ib_send_bw", "-q", "4", "-b"],
    "send_bw_shared": ["ib_send_bw", "--use-srq"],
    "send_lat": ["ib_send_lat"],
    "send_lat_large": ["ib_send_lat", "-s", "8388608", "-n", "6"],
    "send_lat_events": ["ib_send_lat", "-e"],
    "write_bw": ["ib_write_bw"],
    "write_bw_large": ["ib_write_bw", "-s", "8388608", "-n", "6"],
    "write_bw_both_ways": ["ib_write_bw", "-b"],
    "write_bw_queue_pairs": ["ib_write_bw", "-q", "4"],
    "write_lat": ["ib_write_lat"],
    "write_lat_large": ["ib_write_lat", "-s", "1048576"],
}


@pytest.mark.parametrize("name", UNRELIABLE)
def test_unreliable_connections(roce_pair, link, name):
    """-c UC. A message that is lost makes perftest wait without end."""
    skip_half(link, UNRELIABLE, name)
    tool, *options = UNRELIABLE[name]
    usual = [] if "-n" in options else ["-n", "500"]
    command = [tool, "-d", "{device}", "-p", "{port}", "-F", "-c", "UC", *usual, *options]
    server, client = roce_pair(link, command, command + ["{address}"])
    assert report.rows(client), f"{client}\n==== server\n{server}"
    assert "rror" not in client + server, f"{client}\n==== server\n{server}"


@pytest.mark.parametrize("options", [[], ["-e"], ["-s", "1"], ["-s", "1048576", "-n", "100"]],
                         ids=["poll", "events", "byte", "large"])
def test_unreliable_pingpong(roce_pair, link, options):
    command = ["ibv_uc_pingpong", "-d", "{device}", "-g", "0", "-p", "{port}", *options]
    for output in roce_pair(link, command, command + ["{address}"]):
        assert "iters in" in output, output


@pytest.mark.parametrize("name", XRC)
def test_xrc_perftest(roce_pair, link, name):
    skip_half(link, XRC, name)
    perftest(roce_pair, link, XRC[name], "-c", "XRC")


@pytest.mark.parametrize("options", [[], ["-e"]], ids=["poll", "events"])
@pytest.mark.parametrize("clients", [1, 3])
def test_xsrq_pingpong(start, link, port, clients, options):
    """The clients have one shared queue each, of the same number: the server sends to one by the
    connection of another, which adapters deliver if both are of one host."""
    command = ["ibv_xsrq_pingpong", "-g", "0", "-p", port, "-n", "200", *options]
    server = start([*command, "-d", link.server.device, "-c", clients], link.server, env=ROCE)
    places.wait_listening(server, port)
    reached = [*command, "-d", link.client.device, link.server.address]
    all_clients = [start(reached, link.client, env=ROCE) for _ in range(clients)]
    for process in (*all_clients, server):
        assert process.succeed().rstrip().endswith("success"), process


def test_rdma_xserver_and_xclient(roce_pair, link):
    """XRC queue pairs by rdma_cm: the port space IB, and the shared queue's number as private data."""
    server, client = roce_pair(link, ["rdma_xserver", "-c", "x", "-p", "{port}"],
                               ["rdma_xclient", "-c", "x", "-s", "{address}", "-p", "{port}"])
    assert "rdma_xserver: end 0" in server, server
    assert "rdma_xclient: end 0" in client, client


# A datagram that finds no receive is lost, and ib_send_bw waits for it without end; hence -r, which
# posts as many receives as there are messages.
DATAGRAMS = {
    "send_bw": ["ib_send_bw", "-n", "1000", "-r", "1000"],
    "send_bw_both_ways": ["ib_send_bw", "-b", "-n", "500", "-r", "500"],
    "send_lat": ["ib_send_lat", "-n", "500"],
}
MORE_DATAGRAMS = {
    "send_bw_few_bytes": ["ib_send_bw", "-s", "2", "-n", "4000", "-r", "4000"],
    "send_bw_sizes": ["ib_send_bw", "-a", "-n", "500", "-r", "500"],
    "send_bw_events": ["ib_send_bw", "-e", "-n", "1000", "-r", "1000"],
    "send_bw_queue_pairs": ["ib_send_bw", "-q", "4", "-n", "500", "-r", "500"],
    "send_bw_lists": ["ib_send_bw", "-l", "8", "-n", "512", "-r", "512"],
    "send_bw_inline": ["ib_send_bw", "-I", "64", "-s", "64", "-n", "512", "-r", "512"],
    "send_bw_shared": ["ib_send_bw", "--use-srq", "-n", "500", "-r", "500"],
    "send_bw_plain": ["ib_send_bw", "-n", "5000"],
    "send_lat_sizes": ["ib_send_lat", "-a", "-n", "100"],
    "send_lat_events": ["ib_send_lat", "-e", "-n", "500"],
    "send_lat_inline": ["ib_send_lat", "-I", "64", "-s", "64", "-n", "500"],
    "send_lat_duration": ["ib_send_lat", "-D", "2", "-f", "0", "-s", "64"],
}
DATAGRAM_SIZES = [1 << shift for shift in range(1, 13)]


def datagrams(roce_pair, link, options):
    command = [*options, "-d", "{device}", "-p", "{port}", "-F", "-c", "UD"]
    server, client = roce_pair(link, command, command + ["{address}"])
    sizes = [row.size for row in report.rows(client)]
    assert sizes == DATAGRAM_SIZES if "-a" in options else len(sizes) == 1, client
    assert "rror" not in client + server, f"{client}\n==== server\n{server}"


@pytest.mark.parametrize("name", DATAGRAMS)
def test_datagrams(roce_pair, link, name):
    datagrams(roce_pair, link, DATAGRAMS[name])


@pytest.mark.applications
@pytest.mark.parametrize("name", MORE_DATAGRAMS)
def test_more_datagrams(roce_pair, link, name):
    datagrams(roce_pair, link, MORE_DATAGRAMS[name])


@pytest.mark.parametrize("options", [[], ["-e"], ["-s", "1"], ["-s", "4096"]],
                         ids=["poll", "events", "byte", "large"])
def test_datagram_pingpong(roce_pair, link, options):
    command = ["ibv_ud_pingpong", "-d", "{device}", "-g", "0", "-p", "{port}", *options]
    for output in roce_pair(link, command, command + ["{address}"]):
        assert "1000 iters in" in output, output


@pytest.mark.parametrize("how", ["exit", "stay", "die"])
def test_end_behind_messages_that_are_held(start, loopback, port, how):
    """A message waits for its receive without end, and no FIN gets past it: both windows are closed.
    The event comes all the same, as it would with adapters."""
    env = {**ROCE, "UWARP_SNDBUF": "16384", "UWARP_RCVBUF": "16384"}
    server = start([PEER, "serve", loopback.server.address, port], loopback.server, env=env)
    places.wait_listening(server, port)
    client = start([PEER, f"overrun-{how}", loopback.server.address, port], loopback.client, env=env)
    left = client.wait()
    assert left == (-signal.SIGKILL if how == "die" else 0), client
    served = server.succeed()
    assert served.rstrip().endswith("done"), served
    if how == "stay":
        heard, exits = (float(re.search(pattern + r" at ([\d.]+)", output)[1]) for pattern, output in
                        [(r"DISCONNECTED status=0", served), ("exits", client.output)])
        assert heard < exits, f"{served}\n==== client\n{client}"


def test_without_acknowledgements(pair, link):
    command = ["ib_write_bw", "-d", "{device}", "-p", "{port}", "-F", "-n", "500"]
    env = {**ROCE, "UWARP_ROCE_ACK": "0"}
    assert report.rows(pair(link, command, command + ["{address}"], env=env)[1])


@pytest.mark.parametrize("address", ["{address}", "{address6}"])
def test_rping(roce_pair, link, address):
    common = ["-a", address, "-p", "{port}", "-C", 50, "-V", "-v", "-S", 1000]
    server, client = roce_pair(link, ["rping", "-s", *common], ["rping", "-c", *common])
    for prefix, output in (("ping data", client), ("server ping data", server)):
        numbers = re.findall(rf"^{prefix}: rdma-ping-(\d+): ", output, re.M)
        assert numbers == [str(n) for n in range(50)], output[-2000:]


def test_rping_with_its_own_queue_pairs(roce_pair, link):
    common = ["-q", "-a", "{address}", "-p", "{port}", "-C", 50, "-v", "-S", 1000]
    _, client = roce_pair(link, ["rping", "-s", *common], ["rping", "-c", *common])
    assert len(re.findall(r"^ping data: ", client, re.M)) == 50, client


@pytest.mark.parametrize("migrate", [[], ["-m"]], ids=["stay", "migrate"])
def test_ucmatose(roce_pair, link, migrate):
    common = ["-p", "{port}", "-c", "50", "-C", "10", "-S", "1000", *migrate]
    for output in roce_pair(link, ["ucmatose", "-b", "{address}", *common],
                            ["ucmatose", "-s", "{address}", *common]):
        assert "data transfers complete" in output, output
        assert "test complete" in output and "return status 0" in output, output


def test_rdma_server_and_client(roce_pair, link):
    server, client = roce_pair(link, ["rdma_server", "-s", "{address}", "-p", "{port}"],
                               ["rdma_client", "-s", "{address}", "-p", "{port}"])
    assert "rdma_server: end 0" in server, server
    assert "rdma_client: end 0" in client, client


@pytest.mark.parametrize("mode", ["b", "n"])
@pytest.mark.parametrize("tool", ["rstream", "riostream"])
def test_stream(roce_pair, link, tool, mode):
    common = ["-p", "{port}", "-S", "65536", "-I", "100", "-C", "10", "-T", "v", "-T", mode]
    for output in roce_pair(link, [tool, "-b", "{address}", *common],
                            [tool, "-s", "{address}", *common]):
        assert re.search(r"^custom\s", output, re.M), output
        assert "verif" not in output.lower(), output


def test_rcopy(start, link, port, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 20_000)
    server = start(["rcopy", "-p", port], link.server, env=ROCE)
    places.wait_listening(server, port)
    client = start(["rcopy", source, f"{link.server.address}:{target}", "-p", port], link.client,
                   env=ROCE)
    client.succeed()
    assert target.read_bytes() == source.read_bytes()
