# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""uwarp beside siw, the soft-iWARP driver of the Linux kernel: the same perftest binaries on both, in
one virtual machine, interleaved.

Bandwidth is measured in both forms: User Mode Linux, whose kernel code runs natively on one processor,
but whose system calls are very dear, and QEMU, which emulates two and makes everything slower alike.
Latency between two pollers needs two processors, and so the latter.
"""

import dataclasses
import sys

from . import pairs
from .campaign import Campaign
from .conditions import numeric
from .contenders import Contenders
from .groups import KIB, MIB, Group, Row, human

sys.path.insert(0, str(pairs.places.ROOT / "tests" / "siw-lab"))
import vm  # noqa: E402

FORMS = {"uml": "User Mode Linux, one processor", "qemu": "emulated by QEMU, two processors"}
LINKS = ("loopback", "veth 1500")
SIZES = (64 * KIB, MIB)
ROUND_TRIPS = 2000
NEAR, FAR = "10.79.0.1", "10.79.0.2"

# A wildcard listener of siw binds to the interface number of each of its devices, so these must
# differ in both namespaces.
VETH = f"""
mkdir -p /run/netns
ip=/usr/bin/ip
$ip netns add far
$ip link add va index 70 mtu 1500 type veth peer name vb index 71 mtu 1500 netns far
$ip addr add {NEAR}/24 dev va
$ip link set va up
$ip -n far addr add {FAR}/24 dev vb
$ip -n far link set vb up
$ip -n far link set lo up
rdma link add siwva type siw netdev va
$ip netns exec far rdma link add siwvb type siw netdev vb
"""
ENTER_FAR = ["/usr/bin/ip", "netns", "exec", "far"]


class SiwCampaign(Campaign):
    """A campaign whose links are inside one virtual machine."""

    def __init__(self, groups, say, machine):
        super().__init__(groups, say)
        enter = machine.namespace.enter()
        machine.guest.run(VETH)
        own = vm.Guest(enter)  # One's own address is reached over the loopback device.
        near = vm.Guest(enter, (), NEAR, None, "uwarp_va", "siwva")
        far = vm.Guest(enter, ENTER_FAR, FAR, None, "uwarp_vb", "siwvb")
        self._links = {"loopback": pairs.places.Link("loopback", own, own),
                       "veth 1500": pairs.places.Link("veth 1500", far, near)}


@dataclasses.dataclass
class FormGroup(Group):
    """One that is measured in this form of the machine."""
    form: str = ""


class Catalogue:
    """The groups of all forms of the machine."""

    def __init__(self, seconds, crc=False):
        build = pairs.places.pathlib.Path(vm.GUEST_BUILD)
        self._uwarp = Contenders(build, seconds, 1.0, crc)
        self._siw = Contenders(build, seconds, 1.0, driver="siw")

    def groups(self):
        for link in LINKS:
            for form in FORMS:
                yield from (self._stream(size, link, form) for size in SIZES)
            yield self._latency(link)

    def _stream(self, size, link, form):
        group = FormGroup(f"stream {human(size)}, {link}", "MB/s", link, form=form)
        raw = group.add("raw TCP", "check", self._uwarp.raw("stream", "mb_per_second", "--size",
                                                            size, "--read", MIB))
        for tool in ("ib_write_bw", "ib_read_bw", "ib_send_bw"):
            ours, theirs = (
                group.add(f"{tool} on {name}", name, make.perftest_by_count(tool, size))
                for name, make in (("uwarp", self._uwarp), ("siw", self._siw)))
            group.rows.append(Row(f"{tool} {human(size)}, {link}", ours, [theirs], 1.0,
                                  beside=[raw]))
        return group

    def _latency(self, link):
        group = FormGroup(f"half round trip 8 B, {link}", "us", link, form="qemu")
        raw = group.add("raw TCP", "check", self._uwarp.raw("ping-pong", "typical_us", "--size", 8))
        for tool, limit in (("ib_send_lat", 1.0), ("ib_read_lat", None), ("ib_write_lat", None)):
            ours, theirs = (
                group.add(f"{tool} on {name}", name,
                          make.perftest_latency(tool, 8, "-R", count=ROUND_TRIPS,
                                                halved=tool == "ib_read_lat"))
                for name, make in (("uwarp", self._uwarp), ("siw", self._siw)))
            group.rows.append(Row(f"{tool} 8 B, {link}", ours, [theirs], limit, beside=[raw]))
        return group


def measure(form, groups, rounds, limit_seconds, say):
    """The campaign of the groups of one form, done."""
    vm.build_image(uml=form == "uml")
    say(f"starting the machine: {FORMS[form]}")
    machine = vm.Vm(form, niceness=0)
    try:
        done = SiwCampaign(groups, say, machine)
        done.run(rounds, limit_seconds)
        congestion = "cat /proc/sys/net/ipv4/tcp_congestion_control"
        done.conditions = {"kernel": numeric(machine.guest.run("uname -r").strip()),
                           "congestion": machine.guest.run(congestion).strip(),
                           "cpus": int(machine.guest.run("nproc"))}
        return done
    finally:
        machine.close()
