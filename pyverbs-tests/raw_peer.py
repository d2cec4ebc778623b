# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A raw TCP peer that speaks MPA by hand. The codec gives the layout, the test every value.

What the device under test sends is checked byte by byte on arrival (class Scan), in every test
that reads it.
"""

import collections
import contextlib
import socket

import uwarp_wire as w

# A hang guard: what is waited for ought to take milliseconds.
PATIENCE_S = 20
HOST = "127.0.0.1"

# Payload of the peer's segments, where a message has several.
SEGMENT_BYTES = 32768

# More than these an initiator never sends: after 0, 5, 40, 320 and 2560 ms.
WAKE_UPS = 5

# A Read's sink at the peer's own side: used by the peer alone.
SINK_STAG, SINK_TO = 0x51A6C0DE, 0xFFFFFFFF00000001


def made(header, **fields):
    """A header of the codec with these fields."""
    for name, value in fields.items():
        setattr(header, name, value)
    return header


def _controls(ddp, opcode, dv, rv, rsvd, rdmap_rsvd):
    """Both control bytes; what is not None replaces what a correct sender says."""
    rdmap = w.rdmap_control(opcode)
    if dv is not None:
        ddp = ddp & ~w.DDP_VERSION | dv
    if rv is not None:
        rdmap = rdmap & ~w.RDMAP_VERSION | rv << 6
    return ddp | rsvd << 2, rdmap | rdmap_rsvd << 4


def tagged(opcode, stag, to, payload=b"", *, last=True, dv=None, rv=None, rsvd=0, rdmap_rsvd=0):
    ddp, rdmap = _controls(w.ddp_control(True, last), opcode, dv, rv, rsvd, rdmap_rsvd)
    header = made(w.TaggedHeader(), control=ddp, rsvd_ulp=rdmap, stag=stag, to=to)
    return header.encode() + payload


def untagged(opcode, msn, body=b"", *, qn=None, mo=0, stag=0, last=True, dv=None, rv=None, rsvd=0,
             rdmap_rsvd=0):
    ddp, rdmap = _controls(w.ddp_control(False, last), opcode, dv, rv, rsvd, rdmap_rsvd)
    if qn is None:
        qn = w.traits(opcode).queue
    header = made(w.UntaggedHeader(), control=ddp, rsvd_ulp=rdmap, invalidate_stag=stag, qn=qn,
                  msn=msn, mo=mo)
    return header.encode() + body


def read_body(stag, to, size, sink_stag=SINK_STAG, sink_to=SINK_TO):
    return made(w.ReadRequestHeader(), sink_stag=sink_stag, sink_to=sink_to, size=size,
                source_stag=stag, source_to=to).encode()


def atomic_body(stag, to, opcode=w.FETCH_ADD, *, reserved=0, **fields):
    """`reserved`: the 28 bits in front of the operation, which the codec has no field for."""
    wire = made(w.AtomicRequestHeader(), opcode=opcode, remote_stag=stag, remote_to=to,
                **fields).encode()
    word = int.from_bytes(wire[:4], "big") | reserved << 4
    return word.to_bytes(4, "big") + wire[4:]


def terminate_body(layer, etype, code, blamed=None, read_request=False):
    header = made(w.TerminateHeader(), code=layer << 12 | etype << 8 | code)
    if blamed is not None:
        header.blame(blamed, read_request)
    return header.encode()


class Segment:
    """One ULPDU, taken apart."""

    def __init__(self, ulpdu):
        self.ulpdu = ulpdu
        self.tagged = bool(ulpdu[0] & w.TAGGED)
        self.last = bool(ulpdu[0] & w.LAST)
        kind = w.TaggedHeader if self.tagged else w.UntaggedHeader
        self.header = kind.decode(ulpdu)
        self.opcode = self.header.rsvd_ulp & w.RDMAP_OPCODE
        self.body = ulpdu[kind.SIZE:]

    def read(self):
        assert self.opcode == w.READ_REQUEST
        return w.ReadRequestHeader.decode(self.body)

    def atomic(self):
        assert self.opcode == w.ATOMIC_REQUEST
        return w.AtomicRequestHeader.decode(self.body)

    def atomic_response(self):
        assert self.opcode == w.ATOMIC_RESPONSE
        return w.AtomicResponseHeader.decode(self.body)

    def terminate(self):
        assert self.opcode == w.TERMINATE
        return w.TerminateHeader.decode(self.body)

    def is_wake_up(self):
        return (self.opcode == w.WRITE and not self.body and self.last
                and (self.header.stag, self.header.to) == (1, 0))

    def __repr__(self):
        return f"{w.traits(self.opcode).name} {self.ulpdu[:64].hex()}"


class Scan:
    """What holds for every segment of a correct sender. RFC 5040 4, 5041 4 and 5, 7306 4."""

    def __init__(self):
        self.msn = collections.Counter()  # per queue, of the last message begun
        self.open = None                  # first segment of the message that is under way
        self.done = 0                     # bytes of it
        self.terminated = False

    def check(self, segment):
        assert not self.terminated, f"after the Terminate: {segment}"
        header, traits = segment.header, w.traits(segment.opcode)
        assert header.control == w.ddp_control(segment.tagged, segment.last), segment
        assert traits.defined, segment
        solicited_immediate = (segment.opcode == w.SEND_IMMEDIATE
                               and header.rsvd_ulp & w.SEND_IMMEDIATE_SOLICITED)
        assert header.rsvd_ulp == w.rdmap_control(segment.opcode) | solicited_immediate, segment
        assert segment.tagged == traits.tagged, segment
        self._check_place(segment)
        if not segment.tagged:
            self._check_untagged(segment, traits)
        self._advance(segment)

    def _check_untagged(self, segment, traits):
        header = segment.header
        assert header.qn == traits.queue, segment
        if not traits.invalidates and segment.opcode != w.SEND_IMMEDIATE:
            assert header.invalidate_stag == 0, segment
        if not traits.has_payload and segment.opcode != w.TERMINATE:
            assert len(segment.body) == traits.header_size, segment
        if segment.opcode in (w.IMMEDIATE, w.IMMEDIATE_SOLICITED):
            assert segment.body[4:] == bytes(4), segment
        if segment.opcode == w.ATOMIC_REQUEST:
            atomic = segment.atomic()
            # The reserved bits are zero, and so is what a FetchAdd has no use for.
            assert segment.body[:4] == bytes([0, 0, 0, atomic.opcode]), segment
            assert atomic.opcode in (w.FETCH_ADD, w.CMP_SWAP), segment
            if atomic.opcode == w.FETCH_ADD:
                assert (atomic.compare, atomic.compare_mask) == (0, 2**64 - 1), segment
        if segment.opcode == w.TERMINATE:
            assert header.msn == 1 and header.mo == 0, segment
            # Again through the codec: reserved bits zero, nothing behind what the bits announce.
            assert segment.terminate().encode() == segment.body, segment
            assert segment.terminate().text != "undefined error", segment
            self.terminated = True

    def _check_place(self, segment):
        first, header = self.open, segment.header
        # A Terminate may come between the segments of a message, which then ends unfinished.
        if first is None or segment.opcode == w.TERMINATE:
            if not segment.tagged:
                self.msn[header.qn] += 1
                assert header.msn == self.msn[header.qn], f"{segment}, due {self.msn[header.qn]}"
                assert header.mo == 0, segment
            return
        before = first.header
        assert segment.opcode == first.opcode, f"{segment} between segments of {first}"
        if segment.tagged:
            assert header.stag == before.stag, segment
            assert header.to == (before.to + self.done) % 2**64, segment
        else:
            assert (header.qn, header.msn, header.invalidate_stag) == (
                before.qn, before.msn, before.invalidate_stag), segment
            assert header.mo == self.done, segment

    def _advance(self, segment):
        if self.open is None:
            self.open = segment
            self.done = 0
        self.done += len(segment.body)
        assert segment.body or segment.last, f"an empty segment that is not the last: {segment}"
        if segment.last:
            self.open = None


class Port(contextlib.ExitStack):
    """A listening socket of the peer's."""

    def __init__(self):
        super().__init__()
        self.socket = self.enter_context(socket.create_server((HOST, 0)))
        self.socket.settimeout(PATIENCE_S)
        self.number = self.socket.getsockname()[1]

    def accept(self):
        return RawPeer(self.socket.accept()[0])


class RawPeer:
    """One TCP connection: start-up frames, then FPDUs."""

    def __init__(self, connected):
        self.socket = connected
        self.socket.settimeout(PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.crc = False
        self.msn = collections.Counter()
        self.scan = Scan()
        self.wake_ups_left = WAKE_UPS

    @classmethod
    def dial(cls, port):
        return cls(socket.create_connection((HOST, port), timeout=PATIENCE_S))

    def close(self):
        self.socket.close()

    def reset(self):
        """An RST instead of a FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def finish(self):
        """Our FIN; reading goes on."""
        self.socket.shutdown(socket.SHUT_WR)

    # ---- Start-up

    def receive_start_frame(self, reply):
        head = self.receive(w.START_FRAME_SIZE)
        assert len(head) == w.START_FRAME_SIZE, f"no start-up frame: {head}"
        assert head[16] & 0x0F == 0, "reserved bits"
        return w.MpaStartFrame.decode(head + self.receive(int.from_bytes(head[18:], "big")), reply)

    def request_frame(self, **fields):
        """A Request, of revision 1 unless told otherwise."""
        return made(w.MpaStartFrame(), **{"revision": 1, **fields}).encode()

    def take_reply(self, **request):
        """Receives the Reply to a Request of these fields."""
        reply = self.receive_start_frame(reply=True)
        self.crc = bool(request.get("crc")) or reply.crc
        return reply

    def answer(self, request=None, **fields):
        """Receives a Request, unless it is given, and replies in its revision. Returns it."""
        if request is None:
            request = self.receive_start_frame(reply=False)
        defaults = {"revision": request.revision, "enhanced": request.enhanced}
        if request.enhanced:
            defaults.update(ird=request.ord, ord=request.ird)
        reply = made(w.MpaStartFrame(), is_reply=True, **{**defaults, **fields})
        self.raw(reply.encode())
        self.crc = request.crc or reply.crc
        return request

    # ---- Sending

    def raw(self, data):
        self.socket.sendall(data)

    def frame(self, ulpdu, *, length=None, pad=None, crc=None):
        """The FPDU of a ULPDU; `length`, `pad` (a byte) and `crc` replace the right ones."""
        wire = bytearray(w.fpdu(ulpdu, self.crc))
        if length is not None:
            wire[:2] = length.to_bytes(2, "big")
        if pad is not None:
            wire[2 + len(ulpdu):-4] = bytes([pad]) * w.fpdu_pad(len(ulpdu))
            if self.crc:
                wire[-4:] = w.crc32c(bytes(wire[:-4])).to_bytes(4, "little")
        if crc is not None:
            wire[-4:] = crc.to_bytes(4, "little")
        return bytes(wire)

    def put(self, *ulpdus, **overrides):
        """Sends ULPDUs in one burst and returns the last."""
        self.raw(b"".join(self.frame(ulpdu, **overrides) for ulpdu in ulpdus))
        return ulpdus[-1]

    def next_msn(self, qn):
        self.msn[qn] += 1
        return self.msn[qn]

    def message(self, opcode, body=b"", *, msn=None, **overrides):
        """An untagged ULPDU whose MSN is the next of its queue unless it is given; not sent."""
        if msn is None:
            qn = overrides.get("qn")
            msn = self.next_msn(w.traits(opcode).queue if qn is None else qn)
        return untagged(opcode, msn, body, **overrides)

    def send(self, payload=b"", opcode=w.SEND, **overrides):
        return self.put(self.message(opcode, payload, **overrides))

    def write(self, stag, to, payload=b"", **overrides):
        return self.put(tagged(w.WRITE, stag, to, payload, **overrides))

    def read(self, stag, to, size, sink_stag=SINK_STAG, sink_to=SINK_TO, **overrides):
        body = read_body(stag, to, size, sink_stag, sink_to)
        return self.put(self.message(w.READ_REQUEST, body, **overrides))

    def atomic(self, stag, to, opcode=w.FETCH_ADD, **fields):
        return self.put(self.message(w.ATOMIC_REQUEST, atomic_body(stag, to, opcode, **fields)))

    def immediate(self, value=0, opcode=w.IMMEDIATE, rest=bytes(4), **overrides):
        return self.put(self.message(opcode, value.to_bytes(4, "big") + rest, **overrides))

    def terminate(self, *arguments, **keywords):
        return self.put(self.message(w.TERMINATE, terminate_body(*arguments, **keywords)))

    def answer_read(self, read, data, **overrides):
        """The Read Response to a received Read Request; returns its last segment."""
        cuts = range(0, len(data), SEGMENT_BYTES) or [0]
        return self.put(*(tagged(w.READ_RESPONSE, read.sink_stag, read.sink_to + at,
                                 data[at:at + SEGMENT_BYTES],
                                 last=at + SEGMENT_BYTES >= len(data), **overrides)
                          for at in cuts))

    def answer_atomic(self, atomic, value, **overrides):
        body = made(w.AtomicResponseHeader(), request_id=atomic.request_id, original_value=value)
        return self.put(self.message(w.ATOMIC_RESPONSE, body.encode(), **overrides))

    # ---- Receiving

    def receive(self, count):
        """Exactly that many bytes, or fewer at the end of the stream."""
        data = bytearray()
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            if not chunk:
                break
            data += chunk
        return bytes(data)

    def get(self):
        """The next segment, checked, or None at the end of the stream. The few empty Writes that
        an initiator sends behind its first FPDU to a peer that says nothing, to wake it should it
        have missed that, are left out (docs/spec-exceptions.md)."""
        segment = self._get()
        while segment is not None and self.wake_ups_left and segment.is_wake_up():
            self.wake_ups_left -= 1
            segment = self._get()
        return segment

    def _get(self):
        head = self.receive(2)
        if not head:
            return None
        assert len(head) == 2, "the stream ends inside a frame"
        length = int.from_bytes(head, "big")
        rest = self.receive(w.fpdu_size(length) - 2)
        assert len(rest) == w.fpdu_size(length) - 2, "the stream ends inside a frame"
        assert rest[length:-4] == bytes(w.fpdu_pad(length)), "pad"
        assert w.verify_crc(head + rest) if self.crc else rest[-4:] == bytes(4), "CRC"
        segment = Segment(rest[:length])
        self.scan.check(segment)
        return segment

    def expect(self, opcode):
        segment = self.get()
        assert segment is not None, f"{w.traits(opcode).name} is missing"
        assert segment.opcode == opcode, segment
        return segment

    def get_message(self, opcode):
        """All segments of the next message, and their payload together."""
        segments = [self.expect(opcode)]
        while not segments[-1].last:
            segments.append(self.expect(opcode))
        return segments, b"".join(segment.body for segment in segments)

    def get_to_the_end(self):
        """What comes up to the FIN. A reset raises ConnectionResetError."""
        segments = []
        while (segment := self.get()) is not None:
            segments.append(segment)
        return segments

    def is_silent(self):
        """Nothing has arrived so far. Waits for nothing: say first why it would have come."""
        self.socket.setblocking(False)
        try:
            return self.socket.recv(1, socket.MSG_PEEK) is None
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(PATIENCE_S)
