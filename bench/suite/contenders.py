# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""How each contender is started and which of the figures it prints is taken.

A measure is a function of a link (loopback, or two namespaces) that returns one number: MB/s,
microseconds or operations per second.
"""

import copy
import json
import math
import re
import shutil

from . import pairs

MIB = 1.048576  # perftest and UCX call 2^20 bytes a MB

BULK_BYTES = 500_000_000        # of a stream whose contender counts messages, not time
BULK_BYTES_VETH = 100_000_000   # ... where some crawl

CLOCK_TRIES = 6  # perftest gauges the cycle counter at its start; where it fails it prints 0 or inf

FOR_A_SECOND = ("-D", 1, "-f", 0)  # perftest takes no less

PERFTEST_DEPTH = 128
OUTSTANDING_BYTES = 16 << 20  # of perftest_by_count()

# UCX looks for network devices in sysfs, which shows those of the namespace it was mounted in.
OWN_SYSFS = ["unshare", "-m", "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"', "sh"]


class Contenders:
    """Makes measures. `seconds` is what a timed sample takes, `scale` shrinks counted ones.
    `driver` is what verbs programs run on: uwarp, or siw where there is a kernel with it. Within a
    host uwarp stays on TCP, unless under() says otherwise."""

    def __init__(self, build, seconds, scale, crc=False, driver="uwarp"):
        self._driver = driver
        self._bin = build / "bin"
        self._seconds = seconds
        self._scale = scale
        self._crc = crc
        self._settings = {"UWARP_SHM": "0"}
        self._cores = None  # of the server and of the client

    def under(self, **settings):
        """The same with these settings of uwarp."""
        other = copy.copy(self)
        other._settings = self._settings | settings
        return other

    def on_cores(self, server, client):
        """The same, each end with one core for all its threads."""
        other = copy.copy(self)
        other._cores = (server, client)
        return other

    def _ends(self, command):
        """The commands of the server and of the client."""
        ends = command, command + ["{address}"]
        if self._cores is None:
            return ends
        return tuple(["taskset", "-c", core, *end] for core, end in zip(self._cores, ends))

    def _count(self, count):
        return max(200, int(count * self._scale))

    def _bulk_count(self, size, volume=BULK_BYTES):
        return self._count(min(100000, max(300, volume // size)))

    # ---- programs of our own: `figure` names the line of output that counts

    def _own(self, program, mode, figure, *options, **how):
        command = [self._bin / program, mode, "--port", "{port}", "--seconds", self._seconds,
                   *options]

        def measure(link):
            output = pairs.run_pair(link, *self._ends(command), **how)
            return named_figure(output, figure)
        return measure

    def raw(self, mode, figure, *options, congestion=""):
        """Plain TCP."""
        if congestion:
            options += ("--congestion", congestion)
        return self._own("raw_tcp", mode, figure, *options)

    def raw_tls(self, mode, figure, *options):
        """Plain TLS over TCP."""
        return self._own("raw_tls", mode, figure, *options)

    def raw_udp(self, mode, figure, *options):
        return self._own("raw_udp", mode, figure, *options)

    def raw_memory(self, mode, figure, *options):
        """Shared memory."""
        return self._own("raw_memory", mode, figure, *options)

    def verbs(self, mode, figure, *options):
        return self._own("verbs_bench", mode, figure, *options, uwarp=True, env=self._uwarp_env())

    # ---- uwarp

    def _uwarp_env(self, crc=False, spin_us=None):
        env = dict(self._settings)
        if crc or self._crc:
            env["UWARP_CRC"] = "1"
        if spin_us is not None:
            env["UWARP_SPIN_US"] = str(spin_us)
        return env

    def perftest(self, tool, size, extent, column, *options, factor=1.0, **settings):
        """`column` of the last line of the client's table; `extent` says how long it measures.
        `settings` of uwarp: see _uwarp_env()."""
        on_uwarp = self._driver == "uwarp"
        command = [tool, "-d", "{device}" if on_uwarp else "{siw_device}", "-F", "-p", "{port}",
                   "-s", size, *extent, *options]

        def measure(link):
            for _ in range(CLOCK_TRIES):
                output = pairs.run_pair(link, *self._ends(command), uwarp=on_uwarp,
                                        env=self._uwarp_env(**settings))
                lines = re.findall(r"^\s*(\d+\s+\d+(?:\s+[\d.]+|\s+inf)+)\s*$", output, re.M)
                if not lines:
                    raise pairs.Failed(f"{tool} printed no result:\n{output}")
                figure = float(lines[-1].split()[column]) * factor
                if 0 < figure < math.inf:
                    return figure
            raise pairs.Failed(f"{tool} cannot read the clock:\n{output}")
        return measure

    def perftest_latency(self, tool, size, *options, count=10000, halved=False, spin_us=None):
        """Median half round trip; ib_read_lat prints whole ones."""
        return self.perftest(tool, size, ("-n", self._count(count)), 4, *options,
                             factor=0.5 if halved else 1.0, spin_us=spin_us)

    def perftest_mean_latency(self, tool, size):
        """Half a round trip, the mean."""
        return self.perftest(tool, size, FOR_A_SECOND, 2)

    def perftest_bandwidth(self, tool, size, *options, crc=False):
        return self.perftest(tool, size, FOR_A_SECOND, 3, *options, factor=MIB, crc=crc)

    def perftest_by_count(self, tool, size):
        """Bandwidth over rdma_cm, from the number of messages in a second: perftest's own figure is
        in units of a cycle counter that it cannot always gauge in a virtual machine. With perftest's
        own depth what is outstanding takes an emulated machine most of that second."""
        depth = min(PERFTEST_DEPTH, OUTSTANDING_BYTES // size)
        return self.perftest(tool, size, FOR_A_SECOND, 1, "-R", "-t", depth, factor=size / 1e6)

    # ---- UCX, libfabric and the cross-checks

    def ucx(self, test, size, figure, *options, count=10000, transports="tcp"):
        """`figure`: typical or average (us), bandwidth (MB/s) or rate (per second)."""
        server = ["ucx_perftest", "-p", "{port}"]
        client = server + ["{address}", "-t", test, "-s", size, "-n", self._count(count),
                           "-w", self._count(count) // 10, "-f", "-v", *options]
        env = {"UCX_TLS": transports, "UCX_WARN_UNUSED_ENV_VARS": "n"}
        if transports == "tcp":
            env["UCX_NET_DEVICES"] = "{netdev}"

        def measure(link):
            enter = [] if link.name == "loopback" else OWN_SYSFS
            output = pairs.run_pair(link, enter + server, enter + client, env=env)
            # iterations, typical, average and overall latency, average and overall bandwidth,
            # average and overall rate
            lines = re.findall(r"^\s*\d+(?:,[\d.]+){7}$", output, re.M)
            if not lines:
                raise pairs.Failed(f"ucx_perftest printed no result:\n{output}")
            fields = [float(field) for field in lines[-1].split(",")]
            return {"typical": fields[1], "average": fields[3], "bandwidth": fields[5] * MIB,
                    "rate": fields[7]}[figure]
        return measure

    def ucx_bandwidth(self, size, volume=BULK_BYTES, test="tag_bw", transports="tcp"):
        return self.ucx(test, size, "bandwidth", transports=transports,
                        count=self._bulk_count(size, volume) / self._scale)

    def libfabric(self, size, count=10000):
        """fi_pingpong prints the mean half round trip."""
        options = ["-p", "tcp", "-e", "msg", "-I", self._count(count), "-S", size]
        server = ["fi_pingpong", *options, "-B", "{port}"]
        client = ["fi_pingpong", *options, "-P", "{port}", "{address}"]

        def measure(link):
            output = pairs.run_pair(link, server, client)
            lines = [line.split() for line in output.splitlines()]
            found = [line for line in lines if len(line) == 8 and line[4].endswith("s")]
            if not found:
                raise pairs.Failed(f"fi_pingpong printed no result:\n{output}")
            return float(found[-1][6])
        return measure

    def iperf3(self, size):
        server = ["iperf3", "-s", "-1", "-p", "{port}"]
        client = ["iperf3", "-c", "{address}", "-p", "{port}", "-t", "1", "-l", size, "-J"]

        def measure(link):
            report = json.loads(pairs.run_pair(link, server, client))
            return report["end"]["sum_received"]["bits_per_second"] / 8e6
        return measure

    def qperf(self, size):
        server = ["qperf", "-lp", "{port}"]
        client = ["qperf", "{address}", "-lp", "{port}", "-m", size, "-t", "1",
                  "tcp_bw"]

        def measure(link):
            output = pairs.run_pair(link, server, client, server_stays=True)
            found = re.search(r"bw\s*=\s*([\d.]+)\s*([KMG]?)B/sec", output) or \
                re.search(r"bw\s*=\s*([\d.]+)\s*([KMG]?)bytes/sec", output)
            if not found:
                raise pairs.Failed(f"qperf printed no result:\n{output}")
            return float(found[1]) * {"": 1e-6, "K": 1e-3, "M": 1, "G": 1e3}[found[2]]
        return measure


def named_figure(output, name):
    found = re.search(rf"^{name} ([-+\d.e]+)$", output, re.M)
    if not found:
        raise pairs.Failed(f"no figure {name} in:\n{output}")
    return float(found[1])


def with_busy_core(measure):
    def busy(link):
        with pairs.one_core_busy():
            return measure(link)
    return busy


def available(program):
    return shutil.which(program) is not None
