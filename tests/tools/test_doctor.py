# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""uwarp-doctor: on machines that are ready and on others; against peers that fit and others. The
tests play the peers; each peer must give one sentence, one verdict and one exit status."""

import contextlib
import json
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
import threading

import pytest

import places
import sandbox
from iwarp_peer import (FLAG_CRC, FLAG_MARKERS, FLAG_REJECT, READ_REQUEST, REPLY_KEY, REQUEST_KEY,
                        WRITE, crc32c, read_request, start_frame, tagged, untagged)

DOCTOR = places.BUILD / "bin" / "uwarp-doctor"
READY, NOT_READY, USAGE = 0, 1, 2
FLAG_ENHANCED = 0x10
# First half of the enhanced word: A, B and the IRD; second: C (Write), D (Read) and the ORD.
PEER_TO_PEER, RTR_SEND, RTR_WRITE, RTR_READ = 0x8000, 0x4000, 0x8000, 0x4000
PATIENCE_SECONDS = 30


def doctor(*arguments, env=None, place=None, program=DOCTOR, **keywords):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("UWARP_")}
    return subprocess.run([*(place.enter if place else []), str(program), *map(str, arguments)],
                          env=clean | (env or {}), capture_output=True, text=True,
                          timeout=places.GUARD_SECONDS * 2, check=False, **keywords)


def examine(*arguments, **keywords):
    """(exit status, findings by check, whole JSON)"""
    run = doctor("--json", *arguments, **keywords)
    told = json.loads(run.stdout)
    assert (run.returncode == READY) == (told["status"] == "ready"), run
    findings = {}
    for finding in told["checks"]:
        findings.setdefault(finding["check"], []).append(finding)
    return run.returncode, findings, told


# ---- Peers


class Peer:
    """A TCP server that treats each connection by the next of `behaviours`, the last for all that
    follow. Its Requests are kept as they came."""

    def __init__(self, *behaviours, family=socket.AF_INET):
        self.behaviours = list(behaviours)
        self.requests = []
        self.errors = []
        self.opening = b""
        host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        self.listener = socket.create_server((host, 0), family=family)
        self.port = self.listener.getsockname()[1]
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        while True:
            connection, _ = self.listener.accept()
            with connection:
                if self.over.is_set():
                    return
                connection.settimeout(PATIENCE_SECONDS)
                index = min(len(self.requests), len(self.behaviours) - 1)
                self.requests.append(b"")
                try:
                    self.behaviours[index](self, connection)
                except OSError as error:
                    self.errors.append(error)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        with contextlib.suppress(OSError):
            socket.create_connection(self.listener.getsockname()[:2], timeout=5).close()
        self.thread.join()
        self.listener.close()

    def take_request(self, connection):
        """The whole Request; 20 bytes, and as many as they say."""
        data = b""
        wanted = 20
        while len(data) < wanted:
            chunk = connection.recv(wanted - len(data))
            if not chunk:
                break
            data += chunk
            if len(data) == 20:
                wanted += struct.unpack(">H", data[18:])[0]
        self.requests[-1] = data
        return data

    def rest(self, connection):
        """What comes after the Reply, up to the end."""
        while chunk := connection.recv(4096):
            self.opening += chunk


def says(data):
    def behave(peer, connection):
        peer.take_request(connection)
        connection.sendall(data)
        peer.rest(connection)
    return behave


def word(first=PEER_TO_PEER, ird=4, second=RTR_WRITE, ord_=4):
    return struct.pack(">HH", first | ird, second | ord_)


def reply(flags=FLAG_ENHANCED, revision=2, private=None):
    return start_frame(REPLY_KEY, flags, revision, word() if private is None else private)


def closes(peer, connection):
    peer.take_request(connection)


def cut(data):
    def behave(peer, connection):
        peer.take_request(connection)
        connection.sendall(data)
    return behave


def says_nothing(peer, connection):
    peer.take_request(connection)
    peer.rest(connection)


def greets(peer, connection):
    """A service that speaks first, like ssh."""
    connection.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n")
    with contextlib.suppress(OSError):
        while connection.recv(4096):
            pass


# How a uwarp shows itself, and its persona, in Writes whose places no peer checks: docs/wire.md.
UWARP = 0x75776172
MAGIC_WRITE = tagged(WRITE, UWARP, 0x7021000000000001)
IWARP, ROCE = (tagged(WRITE, UWARP, 0x6E21000000000000 | persona) for persona in (1, 2))
WAKE_UPS = [IWARP] + [tagged(WRITE, 1, 0)] * 3
EMPTY_READ = untagged(READ_REQUEST, 1, 1, read_request(1, 0, 0, 1, 0))


def frames(*ulpdus, crc=False):
    data = b""
    for ulpdu in ulpdus:
        frame = struct.pack(">H", len(ulpdu)) + ulpdu
        frame += bytes(-len(frame) % 4)
        data += frame + struct.pack("<I", crc32c(frame) if crc else 0)
    return data


def answers(fpdus):
    """Accepts, and sends these once the first message has come."""
    def behave(peer, connection):
        peer.take_request(connection)
        connection.sendall(reply())
        peer.opening += connection.recv(4096)
        connection.sendall(fpdus)
        peer.rest(connection)
    return behave


CALL_ANSWER = b"uWRV" + bytes([1, 1]) + bytes(6)

# name: behaviour, verdict, level, what the sentence contains.
PEERS = {
    "fits": (says(reply()), "compatible", "ok", "MPA revision 2, peer to peer with a Write first"),
    "read rtr": (says(reply(private=word(second=RTR_READ))), "compatible", "ok", "with a Read first"),
    "no p2p": (says(reply(private=word(first=0, second=0))), "compatible", "ok",
               "no peer-to-peer mode"),
    "crc": (says(reply(FLAG_ENHANCED | FLAG_CRC)), "compatible", "ok", "CRC, as the peer asks"),
    "private data": (says(reply(private=word() + b"hello")), "compatible", "ok", "revision 2"),
    "same persona": (answers(frames(MAGIC_WRITE, IWARP)), "compatible", "ok", "revision 2"),
    "other persona": (answers(frames(MAGIC_WRITE, ROCE)), "persona", "warning",
                      "it is a uwarp of the roce persona, and programs here have the iwarp"),
    "no persona": (answers(frames(MAGIC_WRITE, tagged(WRITE, UWARP, 0x6E21000000000003))),
                   "compatible", "ok", "revision 2"),
    "persona cut": (answers(frames(MAGIC_WRITE, ROCE)[:-1]), "compatible", "ok", "revision 2"),
    "persona with a payload": (answers(frames(ROCE + b"x")), "compatible", "ok", "revision 2"),
    "markers": (says(reply(FLAG_ENHANCED | FLAG_MARKERS)), "markers", "problem", "wants markers"),
    "rejects": (says(reply(FLAG_ENHANCED | FLAG_REJECT, private=word() + b"go away")), "rejected",
                "problem", 'private data "go away"'),
    "rejects in binary": (says(reply(FLAG_ENHANCED | FLAG_REJECT, private=word() + b"\x01\xff")),
                          "rejected", "problem", "private data hex 01ff"),
    "rejects silently": (says(reply(FLAG_ENHANCED | FLAG_REJECT)), "rejected", "problem",
                         "without private data"),
    "rendezvous": (says(reply(FLAG_ENHANCED | FLAG_REJECT, private=word() + CALL_ANSWER)),
                   "rendezvous", "ok", "queue pairs that connect without rdma_cm"),
    "send rtr": (says(reply(private=word(first=PEER_TO_PEER | RTR_SEND, second=0))), "rtr",
                 "problem", "wants a Send"),
    "deep": (says(reply(private=word(ord_=1000))), "depth", "problem", "wants 1000 Reads"),
    "answers revision 1": (says(reply(0, 1, b"")), "revision-1", "warning", "revision 1 only"),
    "not enhanced": (says(reply(0, 2, b"")), "revision-1", "warning", "leaves the enhanced part"),
    "revision 0": (says(reply(0, 0, b"")), "revision", "problem", "revision 0"),
    "revision 3": (says(reply(0, 3, b"")), "revision", "problem", "revision 3"),
    "http": (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "not-mpa", "problem", '"HTTP/1.1 400'),
    "binary": (says(b"\x00\x01\x02" * 8), "not-mpa", "problem", "hex 000102"),
    "ssh": (greets, "not-mpa", "problem", '"SSH-2.0-OpenSSH_9.2p1 Debian"'),
    "initiator": (says(start_frame(REQUEST_KEY, FLAG_ENHANCED, 2, word())), "initiator", "problem",
                  "both sides connect"),
    "too much": (says(start_frame(REPLY_KEY, FLAG_ENHANCED, 2, bytes(600))), "malformed", "problem",
                 "more than 512 bytes"),
    "no word": (says(start_frame(REPLY_KEY, FLAG_ENHANCED, 2, b"ab")), "malformed", "problem",
                "IRD/ORD word"),
    "cut off": (cut(reply()[:18]), "truncated", "problem", "in the middle"),
    "cut off in private data": (cut(reply(private=word() + b"hello")[:-2]), "truncated", "problem",
                                "in the middle"),
}


# What an accepting peer sees behind the Request: as from any initiator that then disconnects.
OPENINGS = {
    "fits": frames(MAGIC_WRITE, *WAKE_UPS),
    "private data": frames(MAGIC_WRITE, *WAKE_UPS),
    "crc": frames(MAGIC_WRITE, *WAKE_UPS, crc=True),
    "read rtr": frames(EMPTY_READ, *WAKE_UPS),
} | {name: frames(MAGIC_WRITE, *WAKE_UPS)
     for name in ("same persona", "other persona", "no persona", "persona cut",
                  "persona with a payload")}


@pytest.mark.parametrize("name", PEERS)
def test_verdict_and_line_of_each_peer(name):
    behaviour, verdict, level, sentence = PEERS[name]
    with Peer(behaviour) as peer:
        status, findings, told = examine(f"127.0.0.1:{peer.port}")
    (finding,) = findings["peer"]
    assert told["peer"]["verdict"] == verdict, told
    assert finding["level"] == level and sentence in finding["text"], told
    assert status == (NOT_READY if level == "problem" else READY)
    assert not peer.errors
    assert peer.opening == OPENINGS.get(name, b"")
    (request,) = peer.requests
    if name != "ssh":
        assert request[:16] == REQUEST_KEY and request[17] == 2 and len(request) == 24


def test_a_silent_peer():
    with Peer(says_nothing) as peer:
        status, findings, told = examine("--timeout", 1, f"127.0.0.1:{peer.port}")
    assert (status, told["peer"]["verdict"]) == (NOT_READY, "silent")
    assert "sends no whole MPA Reply within 1 s" in findings["peer"][0]["text"]
    assert len(peer.requests) == 1


def test_a_peer_that_closes_is_asked_again_with_revision_1():
    with Peer(closes) as peer:
        status, findings, told = examine(f"127.0.0.1:{peer.port}")
    assert (status, told["peer"]["verdict"]) == (NOT_READY, "closed")
    assert "without an answer" in findings["peer"][0]["text"]
    assert [request[17] for request in peer.requests] == [2, 1]


def test_a_peer_of_revision_1():
    with Peer(closes, says(reply(0, 1, b""))) as peer:
        status, findings, told = examine(f"127.0.0.1:{peer.port}")
    assert (status, told["peer"]["verdict"]) == (READY, "revision-1")
    assert findings["peer"][0]["level"] == "warning"
    assert "speaks MPA revision 1 only" in findings["peer"][0]["text"]


def test_a_given_revision_means_one_connection():
    with Peer(closes) as peer:
        status, _, told = examine("--revision", 2, f"127.0.0.1:{peer.port}")
    assert (status, told["peer"]["verdict"], len(peer.requests)) == (NOT_READY, "closed", 1)
    with Peer(says(reply(0, 1, b""))) as peer:
        status, _, told = examine("--revision", 1, f"127.0.0.1:{peer.port}")
    assert (status, told["peer"]["verdict"]) == (READY, "compatible")
    assert [len(request) for request in peer.requests] == [20]


def test_one_line_for_people():
    with Peer(says(reply())) as peer:
        run = doctor(f"127.0.0.1:{peer.port}")
    assert run.returncode == READY and not run.stderr
    assert re.fullmatch(r"ok +peer +127\.0\.0\.1:\d+ fits: MPA revision 2, .*\n", run.stdout)


@pytest.mark.parametrize("env, why", [({}, ""), ({"UWARP_SHM": "0"}, "UWARP_SHM=0"),
                                      ({"UWARP_CRC": "1"}, "UWARP_CRC=1"),
                                      ({"UWARP_PCAP": "/dev/null"}, "UWARP_PCAP")])
def test_what_could_carry_a_connection(env, why):
    with Peer(says(reply())) as peer:
        _, findings, told = examine(f"127.0.0.1:{peer.port}", env=env)
    sentence = f"TCP carries it: {why}" if why else "shared memory carries it once it is busy"
    assert sentence in findings["peer"][0]["text"], findings
    assert told["peer"]["details"]["carrier"] == {"shared_memory": not why, "why_not": why}


def test_a_peer_that_asks_for_crc_stays_on_tcp():
    with Peer(says(reply(FLAG_ENHANCED | FLAG_CRC))) as peer:
        _, findings, _ = examine(f"127.0.0.1:{peer.port}")
    assert "TCP carries it: the peer asks for CRC" in findings["peer"][0]["text"]


def test_control_characters_of_a_peer_do_not_reach_the_terminal():
    with Peer(says(reply(FLAG_ENHANCED | FLAG_REJECT, private=word() + b"\x1b[31mred"))) as peer:
        run = doctor(f"127.0.0.1:{peer.port}")
    assert "\x1b" not in run.stdout and run.stdout.count("\n") == 2


def test_a_doctor_of_the_roce_persona_says_so():
    with Peer(answers(frames(MAGIC_WRITE, IWARP))) as peer:
        _, findings, told = examine(f"127.0.0.1:{peer.port}", env={"UWARP_PERSONA": "roce"})
    assert peer.opening.startswith(frames(MAGIC_WRITE, ROCE))
    assert (told["peer"]["verdict"], told["peer"]["details"]["persona"]) == ("persona", "iwarp")
    assert "--roce" in findings["peer"][0]["advice"]


def test_what_the_peer_said_is_in_the_json():
    with Peer(says(reply(FLAG_ENHANCED | FLAG_CRC, private=word(ird=7, ord_=3) + b"hi"))) as peer:
        _, _, told = examine(f"127.0.0.1:{peer.port}")
    details = told["peer"]["details"]
    assert details["reply"] == {
        "revision": 2, "rejected": False, "markers": False, "crc": True, "enhanced": True,
        "peer_to_peer": True, "rtr_write": True, "rtr_read": False, "ird": 7, "ord": 3,
        "private_data": "6869"}
    assert details["tcp_mss"] > 0 and details["address"] == f"127.0.0.1:{peer.port}"


def test_frames_larger_than_segments_towards_a_peer_that_wants_crc():
    with Peer(says(reply(FLAG_ENHANCED | FLAG_CRC))) as peer:
        _, findings, told = examine(f"127.0.0.1:{peer.port}", env={"UWARP_FPDU": "65535"})
    assert told["peer"]["verdict"] == "frames", told
    assert findings["peer"][0]["level"] == "warning"


def test_our_own_wish_for_crc():
    with Peer(says(reply())) as peer:
        _, findings, _ = examine(f"127.0.0.1:{peer.port}", env={"UWARP_CRC": "1"})
    assert "CRC, as UWARP_CRC=1 asks" in findings["peer"][0]["text"]
    assert peer.requests[0][16] & FLAG_CRC


def test_names_ipv6_and_the_port_offset():
    with Peer(says(reply())) as peer:
        assert examine(f"localhost:{peer.port}")[0] == READY
        status, findings, _ = examine(f"127.0.0.1:{peer.port - 3}", env={"UWARP_PORT_OFFSET": "3"})
        assert status == READY and f"(TCP port {peer.port})" in findings["peer"][0]["text"]
    with Peer(says(reply()), family=socket.AF_INET6) as peer:
        status, _, told = examine(f"[::1]:{peer.port}")
        assert status == READY and told["peer"]["target"] == f"[::1]:{peer.port}"


def test_a_port_without_a_listener(port):
    status, findings, told = examine(f"127.0.0.1:{port}")
    assert (status, told["peer"]["verdict"]) == (NOT_READY, "refused")
    assert "no program listens" in findings["peer"][0]["text"]


def test_no_answer_to_tcp():
    """A listener whose queue is full drops what comes, as a firewall does."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        status, findings, told = examine("--timeout", 1, f"127.0.0.1:{listener.getsockname()[1]}")
    assert (status, told["peer"]["verdict"]) == (NOT_READY, "timeout"), told
    assert "does not answer TCP within 1 s" in findings["peer"][0]["text"]


def test_no_route(veth):
    status, findings, told = examine("198.51.100.1:7471", place=veth.client)
    assert (status, told["peer"]["verdict"]) == (NOT_READY, "unreachable"), told
    assert "no route" in findings["peer"][0]["text"]


def test_no_such_name():
    status, _, told = examine("no-such-host.invalid:7471", "--timeout", 20)
    assert (status, told["peer"]["verdict"]) == (NOT_READY, "unresolved"), told


def test_a_uwarp_server_is_asked_and_goes_on_serving(start, port, loopback):
    server = start(["rping", "-s", "-P", "-a", "127.0.0.1", "-p", port])
    places.wait_listening(server, port)
    for _ in range(2):
        status, findings, told = examine(f"127.0.0.1:{port}")
        assert (status, told["peer"]["verdict"]) == (READY, "compatible"), told
        assert "peer to peer with a Write first" in findings["peer"][0]["text"]
    start(["rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "3", "-v"]).succeed()
    assert server.running(), server


def test_a_port_of_a_queue_pair_without_rdma_cm(start, port):
    server = start(["stdbuf", "-oL", "ibv_rc_pingpong", "-d", "uwarp_lo", "-g", "0", "-p", port])
    places.wait_listening(server, port)
    places.wait_until(lambda: "QPN" in server.output, lambda: f"its number: {server}")
    number = int(re.search(r"QPN (0x[0-9a-f]+)", server.output)[1], 16)
    status, _, told = examine(f"127.0.0.1:{number >> 8}")
    assert (status, told["peer"]["verdict"]) == (READY, "rendezvous"), told
    start(["ibv_rc_pingpong", "-d", "uwarp_lo", "-g", "0", "-p", port, "127.0.0.1"]).succeed()
    server.succeed()


@pytest.mark.parametrize("arguments", [
    ["localhost"], ["localhost:"], [":1"], ["localhost:0"], ["localhost:65536"], ["localhost:1x"],
    ["::1:7471"], ["[]:1"], ["--revision", "3", "h:1"], ["--timeout", "0", "h:1"], ["--nonsense"],
    ["h:1", "h:2"]])
def test_wrong_usage(arguments):
    run = doctor(*arguments)
    assert run.returncode == USAGE and run.stderr


def test_help_and_version():
    run = doctor("--help")
    assert run.returncode == READY
    text = " ".join(run.stdout.split())
    assert "at most one connection request" in text and "Exit status" in text
    assert re.fullmatch(r"uwarp \d+\.\d+\.\d+\n", doctor("--version").stdout)


# ---- This machine


def problems(findings):
    return [finding for checks in findings.values() for finding in checks
            if finding["level"] == "problem"]


def test_a_machine_that_is_ready():
    status, findings, _ = examine()
    assert status == READY and not problems(findings)
    assert "rdma-core" in findings["libibverbs"][0]["text"]
    assert any("uwarp_lo" in finding["text"] for finding in findings["netdev"])
    assert "uwarp_lo" in findings["verbs"][0]["text"]
    assert findings["rdma_cm"][0]["level"] == "ok"
    assert findings["setting"][0]["text"] == "all settings have their default values"
    text = doctor()
    assert text.returncode == READY and not text.stderr
    *lines, empty, conclusion = text.stdout.splitlines()
    assert all(re.match(r"(ok|warning) +\S+ +\S| +-> \S", line) for line in lines)
    assert not empty and conclusion.startswith("This machine is ready")


def test_the_conclusion_counts():
    run = doctor(env={"UWARP_CRC": "yes"})
    assert run.returncode == NOT_READY
    assert run.stdout.endswith("\nThis machine is not ready: 1 problem\n"), run.stdout
    run = doctor(env={"UWARP_PERSONNA": "roce", "UWARP_NETDEVS": "lo"})
    assert "\nThis machine is ready, with 2 warnings. Start" in run.stdout, run.stdout


def test_what_connections_on_this_host_need():
    """Memory, a way to meet, and the right to read each other's memory, which is up to the host."""
    _, findings, _ = examine()
    memory, meeting, reading = findings["same-host"]
    assert memory["level"] == meeting["level"] == "ok", findings["same-host"]
    assert ("copied once" if reading["level"] == "ok" else "copied twice") in reading["text"]
    _, findings, _ = examine(env={"UWARP_SHM": "0"})
    (only,) = findings["same-host"]
    assert only["level"] == "ok" and "stay on TCP: UWARP_SHM=0" in only["text"]
    _, findings, _ = examine(env={"UWARP_SHM_COPIES": "two"})
    last = findings["same-host"][-1]
    assert last["level"] == "ok" and "UWARP_SHM_COPIES=two" in last["text"]


@pytest.mark.parametrize("call, arguments, sentence", [
    ("memfd_create", [], "no sealed memory"),
    ("process_vm_readv", [], "large payloads are copied twice"),
    ("pidfd_open", [], "need a thread of the target"),
    ("socket", ["AF_UNIX", "SOCK_DGRAM"], "no abstract Unix socket")])
def test_what_a_sandbox_keeps_from_connections_on_this_host(call, arguments, sentence):
    if why := sandbox.missing():
        pytest.skip(why)

    def confine():
        rules = sandbox.seccomp.SyscallFilter(sandbox.seccomp.ALLOW)
        conditions = [sandbox.seccomp.Arg(index, sandbox.seccomp.MASKED_EQ, 0xF,
                                          getattr(socket, name))
                      for index, name in enumerate(arguments)]
        sandbox.refuse(rules, call, *conditions)
        rules.load()

    _, findings, _ = examine(preexec_fn=confine)
    (warning,) = [each for each in findings["same-host"] if each["level"] == "warning"]
    assert sentence in warning["text"] and "seccomp" in warning["advice"], warning


def test_without_the_provider(tmp_path):
    for name in ("bin/uwarp-doctor", "bin/uwarp-run", "lib/libuwarp-preload.so",
                 "lib/libuwarp.so.0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(places.BUILD / name, tmp_path / name)
    status, findings, _ = examine(program=tmp_path / "bin" / "uwarp-doctor")
    assert status == NOT_READY
    assert findings["provider"][0]["level"] == "problem"
    assert "libuwarp-rdmav34.so is missing" in findings["provider"][0]["text"]


def test_with_a_libibverbs_that_does_not_load(tmp_path):
    (tmp_path / "libibverbs.so.1").write_text("no library\n")
    status, findings, _ = examine(env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert status == NOT_READY
    assert findings["libibverbs"][0]["level"] == "problem"
    assert findings["librdmacm"][0]["level"] == "warning"


def test_settings_in_effect_wrong_and_unknown():
    status, findings, _ = examine(env={"UWARP_CRC": "yes", "UWARP_SPIN_US": "7",
                                       "UWARP_PERSONNA": "roce"})
    assert status == NOT_READY
    lines = {(finding["level"], finding["text"].split()[0]) for finding in findings["setting"]}
    assert lines == {("problem", "UWARP_CRC=yes"), ("ok", "UWARP_SPIN_US=7"),
                     ("warning", "UWARP_PERSONNA")}


def test_faults_that_are_not_understood():
    status, findings, _ = examine(env={"UWARP_FAULT": "nonsense"})
    assert status == NOT_READY
    assert [(finding["level"], finding["text"].split(":")[0]) for finding in findings["setting"]] \
        == [("problem", "UWARP_FAULT=nonsense")]


def test_only_loopback(veth):
    status, findings, _ = examine(env={"UWARP_NETDEVS": "lo"}, place=veth.client)
    assert status == READY
    assert findings["devices"][0]["level"] == "warning"
    assert "only loopback" in findings["devices"][0]["text"]
    assert any("left out by UWARP_NETDEVS" in finding["text"] for finding in findings["netdev"])


def test_no_network_device():
    if not places.can_unshare():
        pytest.skip("no right to make network namespaces (neither root nor user namespaces)")
    space = places.Namespace()
    try:
        place = places.Place("empty", space.enter(), "", "", "")
        status, findings, _ = examine(place=place)
    finally:
        space.close()
    assert status == NOT_READY
    assert "no network device" in findings["devices"][0]["text"]


def test_a_netdev_that_does_not_exist():
    status, findings, _ = examine(env={"UWARP_NETDEVS": "lo,nosuch0"})
    assert status == READY
    assert any(finding["level"] == "warning" and "nosuch0" in finding["text"]
               for finding in findings["netdev"])


def test_port_range(port):
    with socket.create_server(("0.0.0.0", port)):
        status, findings, _ = examine(env={"UWARP_PORT_RANGE": f"{port}-{port}"})
    assert status == NOT_READY
    assert "0 of 1 ports are free" in findings["ports"][0]["text"]
    status, findings, _ = examine(env={"UWARP_PORT_RANGE": f"{port}-{port}"})
    assert status == READY and "room for 256 queue pairs" in findings["ports"][0]["text"]


def test_too_few_files():
    _, findings, _ = examine(
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)))
    assert findings["files"][0]["level"] == "problem"


def test_unknown_congestion_control():
    status, findings, _ = examine(env={"UWARP_CONGESTION": "nosuch"})
    assert status == READY and findings["tcp"][0]["level"] == "warning"
