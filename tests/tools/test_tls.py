# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""UWARP_TLS: stock programs with keys and with certificates, peers that are refused, and what is seen."""

import json
import os
import secrets
import shutil
import socket
import subprocess

import pytest

import places
from capture import Capture, needs_capture

pytestmark = pytest.mark.skipif(not (places.BUILD / "lib" / "libuwarp-tls.so").exists(),
                                reason="built without OpenSSL")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Names of files of keys and certificates."""
    folder = tmp_path_factory.mktemp("keys")

    def keys(name, *identities):
        path = folder / name
        path.write_text("".join(f"{identity}:{secrets.token_hex(32)}\n" for identity in identities))
        path.chmod(0o600)
        return path

    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], cwd=folder, check=True, capture_output=True)

    def certificate(name, authority=None):
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
               "-keyout", f"{name}.key"]
        if authority is None:
            openssl("req", "-x509", *new, "-out", f"{name}.pem")
        else:
            openssl("req", *new, "-out", f"{name}.csr")
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey",
                    f"{authority}.key", "-CAcreateserial", "-out", f"{name}.pem")
        (folder / f"{name}.key").chmod(0o600)

    keys("alice", "alice")
    keys("other", "alice")
    keys("bob", "bob")
    certificate("authority")
    certificate("node1", "authority")
    certificate("node2", "authority")
    certificate("stranger")
    return folder


def psk(files, name="alice"):
    return {"UWARP_TLS": "psk", "UWARP_TLS_PSK": str(files / name)}


def cert(files, name):
    return {"UWARP_TLS": "cert", "UWARP_TLS_CERT": str(files / f"{name}.pem"),
            "UWARP_TLS_KEY": str(files / f"{name}.key"), "UWARP_TLS_CA": str(files / "authority.pem")}


@pytest.fixture(params=["psk", "cert"])
def ends(request, files):
    """Settings of server and client."""
    if request.param == "psk":
        return psk(files), psk(files)
    return cert(files, "node1"), cert(files, "node2")


PROGRAMS = {
    "rping": (["rping", "-s", "-a", "{address}", "-p", "{port}", "-C", "5", "-S", "60000", "-V"],
              ["rping", "-c", "-a", "{address}", "-p", "{port}", "-C", "5", "-S", "60000", "-V"]),
    "ibv_rc_pingpong": (["ibv_rc_pingpong", "-d", "uwarp_lo", "-g", "0", "-p", "{port}", "-n", "200", "-c"],) * 2,
    "ib_write_bw": (["ib_write_bw", "-d", "uwarp_lo", "-x", "0", "-p", "{port}", "-n", "100", "-s", "1048576"],) * 2,
    "ib_write_bw -R": (["ib_write_bw", "-R", "-d", "uwarp_lo", "-x", "0", "-p", "{port}", "-n", "100"],) * 2,
    "ib_read_bw": (["ib_read_bw", "-d", "uwarp_lo", "-x", "0", "-p", "{port}", "-n", "100"],) * 2,
    "ib_send_lat -e": (["ib_send_lat", "-e", "-d", "uwarp_lo", "-x", "0", "-p", "{port}", "-n", "200"],) * 2,
    "ib_send_bw -c UD": (["ib_send_bw", "-c", "UD", "-d", "uwarp_lo", "-x", "0", "-p", "{port}", "-n", "500"],) * 2,
}


@pytest.mark.parametrize("memory", ["0", "1"])
@pytest.mark.parametrize("persona", ["iwarp", "roce"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(start, port, ends, program, persona, memory):
    if program.endswith("UD") and persona == "iwarp":
        pytest.skip("iWARP has no datagrams")
    common = {"UWARP_PERSONA": persona, "UWARP_SHM": memory, "UWARP_LOG": "1"}

    def fill(command):
        return [part.format(address="127.0.0.1", port=port) for part in command]

    server_command, client_command = map(fill, PROGRAMS[program])
    if not program.startswith("rping"):
        client_command.append("127.0.0.1")
    server = start(server_command, env=common | ends[0])
    places.wait_listening(server, port)
    client = start(client_command, env=common | ends[1])
    client.succeed()
    if not program.startswith("rping"):  # whose server may say that the end is an error
        server.succeed()
    server.wait()
    assert "proved by TLS" in client.output + server.output, client


def refused(start, port, server_env, client_env, allow=None):
    """Both logs, where the client may not connect."""
    log = {"UWARP_LOG": "1"}
    server = start(["rping", "-s", "-a", "127.0.0.1", "-p", port], env=log | server_env | (allow or {}))
    places.wait_listening(server, port)
    client = start(["rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "1"], env=log | client_env)
    assert client.wait() != 0, client
    assert "RDMA_CM_EVENT_REJECTED" in client.output, client
    assert server.running(), server
    return server.output, client.output


def test_a_client_without_tls_is_refused(start, port, files):
    server, _ = refused(start, port, psk(files), {})
    assert "does not speak TLS: set UWARP_TLS on both sides" in server


def test_a_server_without_tls_is_refused(start, port, files):
    server, client = refused(start, port, {}, psk(files))
    assert "refused a request" in server
    assert "both sides need the same UWARP_TLS" in client or "does not speak TLS" in client


@pytest.mark.parametrize("name, says", [("other", "different keys"), ("bob", "unknown identity bob")])
def test_other_keys_are_refused(start, port, files, name, says):
    server, _ = refused(start, port, psk(files), psk(files, name))
    assert says in server


def test_keys_and_certificates_do_not_mix(start, port, files):
    server, _ = refused(start, port, psk(files), cert(files, "node1"))
    assert "the peer wants certificates" in server


def test_certificates_of_others_are_refused(start, port, files):
    server, client = refused(start, port, cert(files, "node1"), cert(files, "stranger"))
    assert "the peer's certificate is refused" in server
    assert "does not trust this side's certificate" in client


def test_identities_that_may_connect(start, port, files):
    server, _ = refused(start, port, cert(files, "node1"), cert(files, "node2"),
                        {"UWARP_ALLOW": "127.0.0.0/8,id:node3"})
    assert "node2 of 127.0.0.1" in server and "is not in UWARP_ALLOW" in server


def test_an_identity_that_may_connect(start, port, files):
    server = start(["rping", "-s", "-P", "-a", "127.0.0.1", "-p", port],
                   env=cert(files, "node1") | {"UWARP_ALLOW": "id:node2"})
    places.wait_listening(server, port)
    start(["rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "1"],
          env=cert(files, "node2")).succeed()


def wrong_settings(files):
    (files / "open").write_text((files / "alice").read_text())
    (files / "open").chmod(0o640)
    return {
        "no mode": ({"UWARP_TLS": "on"}, "UWARP_TLS is not off, psk or cert"),
        "no file": ({"UWARP_TLS": "psk"}, "UWARP_TLS_PSK is not set"),
        "missing": (psk(files, "nothing"), "No such file"),
        "open": (psk(files, "open"), "chmod 600"),
        "no key": (cert(files, "node1") | {"UWARP_TLS_KEY": str(files / "node2.key")},
                   "not that of the certificate"),
        "identities": ({"UWARP_ALLOW": "id:alice"}, "which only UWARP_TLS proves"),
    }


@pytest.mark.parametrize("case", ["no mode", "no file", "missing", "open", "no key"])
def test_without_its_files_no_device_is_opened(start, files, case):
    env, says = wrong_settings(files)[case]
    program = start(["ibv_devinfo", "-d", "uwarp_lo"], env=env)
    assert program.wait() != 0
    assert says in program.output and "no device can be opened" in program.output, program


def test_identities_need_tls(start, port, files):
    env, says = wrong_settings(files)["identities"]
    server, _ = refused(start, port, env, {})
    assert says in server


def test_a_module_that_is_missing_is_named(start, files, tmp_path):
    shutil.copytree(places.BUILD / "lib", tmp_path / "lib", symlinks=True,
                    ignore=shutil.ignore_patterns("*.a", "libuwarp-tls.so"))
    (tmp_path / "bin").mkdir()
    shutil.copy(places.UWARP_RUN, tmp_path / "bin")
    program = start([str(tmp_path / "bin" / "uwarp-run"), "ibv_devinfo", "-d", "uwarp_lo"],
                    env=psk(files), uwarp=False)
    assert program.wait() != 0
    assert "UWARP_TLS needs libuwarp-tls.so" in program.output, program


def loaded(process):
    with open(f"/proc/{process.pid}/maps", encoding="utf-8") as maps:
        return maps.read()


@pytest.mark.parametrize("on", [False, True])
def test_openssl_is_loaded_for_tls_only(start, port, files, on):
    server = start(["rping", "-s", "-a", "127.0.0.1", "-p", port], env=psk(files) if on else {})
    places.wait_listening(server, port)
    assert ("libssl" in loaded(server)) == on
    assert ("libcrypto" in loaded(server)) == on


@pytest.mark.skipif(not (places.BUILD / "bin" / "uwarp-stat").exists(), reason="no uwarp-stat")
def test_uwarp_stat_names_the_peer(start, port, files):
    server = start(["rping", "-s", "-P", "-a", "127.0.0.1", "-p", port], env=psk(files) | {"UWARP_SHM": "0"})
    places.wait_listening(server, port)
    start(["rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "1000000"], env=psk(files) | {"UWARP_SHM": "0"})

    def seen():
        shown = subprocess.run([str(places.BUILD / "bin" / "uwarp-stat"), "--json", "--once"],
                               capture_output=True, text=True, check=True).stdout
        return [qp["identity"] for process in json.loads(shown)["processes"]
                for qp in process["queue_pairs"] if qp["tls"] and qp["connected"]]

    places.wait_until(lambda: "alice" in seen(), seen)


@pytest.mark.parametrize("say", [b"", b"\x16", b"\x16\x03\x01\xff\xff", b"MPA ID Req Frame", bytes(4096)])
def test_strangers_at_a_listener(start, port, files, say):
    """They end, or wait with the other half-open connections; an honest client connects."""
    server = start(["rping", "-s", "-P", "-a", "127.0.0.1", "-p", port],
                   env=psk(files) | {"UWARP_MPA_TIMEOUT_MS": "500"})
    places.wait_listening(server, port)
    with socket.create_connection(("127.0.0.1", port), timeout=places.GUARD_SECONDS) as stranger:
        stranger.sendall(say)
        start(["rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "1"], env=psk(files)).succeed()
        try:
            while stranger.recv(4096):
                pass
        except ConnectionError:
            pass
    assert server.running()


class Relay:
    """Between a client and a server: records what the client sends, or changes a byte of it."""

    def __init__(self, target, change_at=None, cut_at=None):
        import threading

        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.target, self.change_at, self.cut_at = target, change_at, cut_at
        self.sent = b""
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        import threading

        near, _ = self.listener.accept()
        far = socket.create_connection(("127.0.0.1", self.target))
        threading.Thread(target=self.copy, args=(far, near, False), daemon=True).start()
        self.copy(near, far, True)

    def copy(self, source, to, watched):
        try:
            while data := source.recv(65536):
                if watched:
                    data = self.spoil(data)
                to.sendall(data)
                if watched and self.cut_at is not None and len(self.sent) >= self.cut_at:
                    break
        except OSError:
            pass
        for end in (source, to):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def spoil(self, data):
        at = None if self.change_at is None else self.change_at - len(self.sent)
        self.sent += data
        if at is not None and 0 <= at < len(data):
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
        if self.cut_at is not None and len(self.sent) > self.cut_at:
            data = data[:len(data) - (len(self.sent) - self.cut_at)]
        return data


def through_relay(start, port, files, **faults):
    env = psk(files) | {"UWARP_LOG": "1", "UWARP_SHM": "0"}
    server = start(["rping", "-s", "-P", "-a", "127.0.0.1", "-p", port], env=env)
    places.wait_listening(server, port)
    relay = Relay(port, **faults)
    client = start(["rping", "-c", "-v", "-a", "127.0.0.1", "-p", relay.port, "-C", "20"], env=env)
    return server, relay, client


def test_a_byte_that_is_changed_on_the_way_ends_the_connection(start, port, files):
    server, _, client = through_relay(start, port, files, change_at=1500)
    client.wait()  # rping does not say by its status that it was disconnected
    assert client.output.count("ping data") < 20, client
    places.wait_until(lambda: "a record was changed on the way" in server.output, lambda: str(server))


def test_a_stream_that_is_cut_is_no_end_in_order(start, port, files):
    server, _, client = through_relay(start, port, files, cut_at=1500)
    client.wait()
    assert client.output.count("ping data") < 20, client
    places.wait_until(lambda: "without a close_notify" in server.output, lambda: str(server))


def test_what_was_sent_once_starts_no_other_connection(start, port, files):
    server, relay, client = through_relay(start, port, files)
    client.succeed()
    assert client.output.count("ping data") == 20, client
    with socket.create_connection(("127.0.0.1", port), timeout=places.GUARD_SECONDS) as again:
        again.sendall(relay.sent)
        try:
            while again.recv(4096):
                pass
        except ConnectionError:
            pass
    assert server.output.count("proved by TLS") == 1, server
    assert server.running()


@needs_capture
def test_no_byte_of_the_payload_is_on_the_wire(start, loopback, port, files, tmp_path):
    capture = Capture(start, loopback, port, tmp_path / "seen.pcapng")
    server = start(["rping", "-s", "-a", "127.0.0.1", "-p", port, "-S", "1000"],
                   env=psk(files) | {"UWARP_SHM": "0"})
    places.wait_listening(server, port)
    start(["rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "20", "-S", "1000"],
          env=psk(files) | {"UWARP_SHM": "0"}).succeed()
    capture.end()
    seen = (tmp_path / "seen.pcapng").read_bytes()
    assert len(seen) > 20_000
    assert b"rdma-ping" not in seen and b"ABCDEFGHIJKLM" not in seen and b"MPA ID" not in seen


def test_datagrams_by_udp_are_refused(start, files):
    env = psk(files) | {"UWARP_PERSONA": "roce"}
    server = start(["udaddy", "-p", "0x0111"], env=env)
    assert server.wait() != 0
    assert "cannot be protected and is refused while UWARP_TLS is on" in server.output, server


@pytest.mark.skipif(not (places.BUILD / "bin" / "uwarp-doctor").exists(), reason="no uwarp-doctor")
def test_the_doctor_looks_at_tls(start, files):
    def line(env):
        doctor = start([str(places.BUILD / "bin" / "uwarp-doctor"), "--json"], env=env, uwarp=False)
        doctor.wait()
        return next(check for check in json.loads(doctor.output)["checks"] if check["check"] == "tls")

    assert "UWARP_TLS is off" in line({})["text"]
    assert "UWARP_TLS=cert by OpenSSL 3" in line(cert(files, "node1"))["text"]
    (files / "wide").write_text((files / "alice").read_text())
    (files / "wide").chmod(0o666)
    wrong = line(psk(files, "wide"))
    assert wrong["level"] == "problem" and "chmod 600" in wrong["text"]


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the owner of a file")
def test_a_file_of_another_user_is_refused(start, files):
    path = files / "strange"
    path.write_text((files / "alice").read_text())
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    program = start(["ibv_devinfo", "-d", "uwarp_lo"], env=psk(files, "strange"))
    assert program.wait() != 0
    assert "belongs to another user" in program.output, program
