# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A program of attackers/, mostly as another user without rights."""

import contextlib
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile

import places

FOLDER = pathlib.Path(__file__).resolve().parent / "attackers"
# What attackers may import.
MODULES = {"iwarp_peer": FOLDER.parent.parent / "tools" / "iwarp_peer.py",
           "stuck_socket": FOLDER.parent / "stuck_socket.py"}
FILES = 4096


def confine():
    """In the child, as that user already: it ends with this run, and has files enough for its work."""
    places.die_with_parent()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))


def with_modules(source):
    """The program behind the modules that it may import: its user may have no right to read them."""
    texts = {name: path.read_text() for name, path in MODULES.items()}
    return (f"import sys, types\nfor name, text in {texts!r}.items():\n"
            "    module = sys.modules[name] = types.ModuleType(name)\n"
            f"    exec(text, module.__dict__)\n{source}")


class Stranger:
    """Prints "ready" when it begins. Its program is handed over as text, since the user may have no
    right to read this folder."""

    def __init__(self, user, name, arguments):
        source = with_modules((FOLDER / f"{name}.py").read_text())
        self.name = name
        self._output = tempfile.TemporaryFile()
        self.child = subprocess.Popen(
            [sys.executable, "-c", source, *map(str, arguments)], cwd="/", user=user.pw_uid,
            group=user.pw_gid, extra_groups=[], stdin=subprocess.DEVNULL, stdout=self._output,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=confine)
        self.pid = self.child.pid

    @property
    def output(self):
        return os.pread(self._output.fileno(), 1 << 20, 0).decode(errors="replace")

    def running(self):
        return self.child.poll() is None

    def wait_ready(self):
        places.wait_until(lambda: "ready" in self.output or not self.running(), lambda: self)
        assert self.running(), f"ended before it began: {self}"

    def reap(self):
        # Also its children: the group is ours until its leader has been waited for.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.child.wait()

    def __str__(self):
        return f"{self.name}\n---- output\n{self.output[-4000:]}----"
