# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The fast suites, built so that one changed file costs one compilation and one link.

Products and tests are compiled without inlining, and nothing is concluded from one function's body
about its callers, not even where [[gnu::flatten]] asks for it. So an inline function of a header exists once in a program, and of several objects
that define it the linker takes the first one's: a change in such a function needs no more objects than
those that define it, put in front. Constants and members of a header need every object that includes
it.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import time

import check_layers

SUITES = ("unit_tests", "sim_tests", "conformance_tests")
# See above; g++ draws conclusions across functions only by these.
COMPILE_OPTIONS = (
    "-O1 -g1 -w -fno-inline -fno-ipa-pure-const -fno-ipa-modref -fno-ipa-ra -fno-ipa-sra -fno-ipa-cp"
    " -fno-ipa-icf -fno-ipa-reference -fno-ipa-profile -Dflatten=noinline -finstrument-functions"
    " -finstrument-functions-exclude-file-list=/usr/,/tests/"
)
# How long a test may take: this many times as long as usual and some seconds.
PATIENCE = 4
GRACE_S = 3
COMPILE_LIMIT_S = 300


def run(command, cwd, **options):
    return subprocess.run(command, cwd=cwd, text=True, capture_output=True, **options)


def must(command, cwd):
    done = run(command, cwd)
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(map(str, command))}\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


@dataclasses.dataclass(frozen=True)
class Test:
    suite: str
    name: str
    seconds: float

    def __str__(self):
        return f"{self.suite}:{self.name}"


@dataclasses.dataclass
class Outcome:
    """Of a program that ran some tests."""

    failed: str | None  # the test that did
    timed_out: bool = False


def linker_option():
    for linker in ("mold", "lld"):
        if any(programs_named(linker)):
            return f"-fuse-ld={linker}"
    return ""


def programs_named(pattern):
    for folder in os.environ["PATH"].split(":"):
        yield from sorted(pathlib.Path(folder).glob(pattern))


def line_finder():
    """That of binutils 2.40 mistakes the file of some inline functions."""
    return str(next(programs_named("llvm-addr2line*"), "addr2line"))


def network_of_its_own():
    """A command in front of tests, so that the ports they use are theirs."""
    for command in (["unshare", "-n"], ["unshare", "-rn"]):
        command += ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        with contextlib.suppress(OSError):
            if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
                return command
    return []


class Build:
    """A copy of the tree, its objects, and programs made of them. `tree` is never changed: a mutant is
    a file in `overlay`, which includes are looked for in first."""

    def __init__(self, folder, folders):
        self.folder = folder
        self.tree = folder / "tree"
        self.build = folder / "build"
        self.overlay = folder / "overlay"
        self.programs = folder / "programs"
        self.recorder = folder / "called_functions.o"
        self.folders = folders
        # Without sockets and threads.
        rooms = ["base", *check_layers.Layers(check_layers.ROOT / "layers.txt").sans_io]
        self.low = [*folders, *(f"providers/uwarp/{room}" for room in rooms)]
        self.network = network_of_its_own()
        for path in (self.build, self.overlay, self.programs):
            path.mkdir(parents=True, exist_ok=True)

    def make(self, fresh=True):
        """Not `fresh`: everything is there, and as it was."""
        if fresh:
            self._configure()
        entries = json.loads((self.build / "compile_commands.json").read_text())
        self.commands = {entry["file"]: entry for entry in entries}
        # Some files are compiled for several targets.
        self.sources = {os.path.relpath(self._output(entry), self.build): entry["file"] for entry in entries}
        self._choose_objects()
        if fresh:
            self._precompile()
            wanted = ["uwarp_static", *sum(self.test_objects.values(), [])]
            if "no work to do" not in must(["ninja", "-j1", *wanted], self.build):
                for calls in self.folder.glob("*.calls"):
                    calls.unlink()
            self._compile_recorder()
        self._read_dependencies()
        self._read_symbols()
        for suite in SUITES:
            problem = self.link(suite, self.programs / suite, [])
            if problem:
                raise SystemExit(problem)

    def _configure(self):
        header = self.folder / "standard.h"
        flags = f"{COMPILE_OPTIONS} -include {header}"
        self._write_standard_header(header)
        must(
            [
                "cmake", "-S", str(self.tree), "-B", str(self.build), "-G", "Ninja",
                "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS_DEBUG={flags}",
                "-DCMAKE_UNITY_BUILD=OFF", f"-DCMAKE_EXE_LINKER_FLAGS={linker_option()}",
                # What is compiled once gains nothing by a cache, which does not like precompiled headers.
                "-DUWARP_CCACHE=OFF", "-DCMAKE_CXX_COMPILER_LAUNCHER=", "-DCMAKE_C_COMPILER_LAUNCHER=",
                "-DUWARP_WERROR=OFF", "-DUWARP_BENCH=OFF", "-DUWARP_NFS=OFF", "-DUWARP_DOCTOR=OFF",
                "-DUWARP_STAT=OFF",
            ],
            self.folder,
        )

    def _write_standard_header(self, header):
        includes = set()
        for folder in self.folders:
            for path in (self.tree / folder).rglob("*"):
                if path.suffix in (".h", ".cc"):
                    includes.update(re.findall(r"^#include <\w+>$", path.read_text(), re.MULTILINE))
        text = "\n".join(sorted(includes))
        text += "\n#ifdef UWARP_TESTS_DIR\n#include <gmock/gmock.h>\n#include <gtest/gtest.h>\n#endif\n"
        if not header.exists() or header.read_text() != text:
            header.write_text(text)

    def _output(self, entry):
        words = shlex.split(entry["command"])
        return os.path.join(entry["directory"], words[words.index("-o") + 1])

    def _choose_objects(self):
        """Of the unit tests those that include something of the mutated folders themselves."""
        layers = "|".join(re.escape(f.split("uwarp/", 1)[1]) for f in self.folders)
        include = re.compile(rf'^#include "(?:{layers})/', re.MULTILINE)
        self.test_objects = {suite: [] for suite in SUITES}
        for obj, source in sorted(self.sources.items()):
            match = re.match(r"tests/CMakeFiles/(\w+)\.dir/", obj)
            if match and match[1] in SUITES:
                if match[1] != "unit_tests" or include.search(pathlib.Path(source).read_text()):
                    self.test_objects[match[1]].append(obj)
        archive = must(["ninja", "-t", "commands", "uwarp_static"], self.build).splitlines()[-1]
        self.product_objects = sorted(w for w in shlex.split(archive) if w.endswith(".o"))

    def _plain_command(self, source):
        """Without output, input and dependency files."""
        words = shlex.split(self.commands[source]["command"])
        plain, index = [], 0
        while index < len(words):
            if words[index] in ("-o", "-c", "-MF", "-MT"):
                index += 1
            elif words[index] != "-MD":
                plain.append(words[index])
            index += 1
        return plain

    def _precompile(self):
        """One precompiled form of the standard headers for each set of options; g++ finds the right one."""
        header = self.folder / "standard.h"
        forms = pathlib.Path(f"{header}.gch")
        forms.mkdir(exist_ok=True)
        wanted = [s for o, s in self.sources.items() if o in self.product_objects]
        wanted += [self.sources[o] for objects in self.test_objects.values() for o in objects]
        for source in wanted:
            words = [w for w in self._plain_command(source) if not w.startswith(("-I", "-DUWARP_VERSION"))]
            at = words.index("-include")
            del words[at : at + 2]
            words = [w for w in words if not w.startswith("-DUWARP_") or "TESTS_DIR" in w]
            content = hashlib.sha256((shlex.join(words) + header.read_text()).encode()).hexdigest()[:16]
            if not (forms / content).exists():
                must([*words, "-x", "c++-header", str(header), "-o", str(forms / content)], self.build)

    def _compile_recorder(self):
        source = self.tree / "tests/mutation/called_functions.cc"
        must(["c++", "-std=c++20", "-O2", "-fPIE", "-c", str(source), "-o", str(self.recorder)], self.build)

    def _read_dependencies(self):
        self.includers = collections.defaultdict(set)  # a file of the tree: objects
        obj = None
        for line in must(["ninja", "-t", "deps"], self.build).splitlines():
            if not line.startswith(" "):
                obj = line.split(":")[0]
            elif line.strip():
                path = os.path.normpath(self.build / line.strip())
                if path.startswith(f"{self.tree}/"):
                    self.includers[os.path.relpath(path, self.tree)].add(obj)

    def is_sans_io(self, obj):
        """Of an object of the product: whether it is of one of the folders at the bottom. Of a test: whether it
        includes nothing of the others."""
        if obj in self.product_objects:
            return self.is_low(os.path.relpath(self.sources[obj], self.tree))
        return all(
            self.is_low(file)
            for file, objects in self.includers.items()
            if file.startswith("providers/uwarp/") and obj in objects
        )

    def is_tested(self, obj):
        """Of an object of the product: whether tests include anything of its folder."""
        folder = str(pathlib.Path(os.path.relpath(self.sources[obj], self.tree)).parent)
        tests = set(sum(self.test_objects.values(), []))
        return any(file.startswith(f"{folder}/") and objects & tests for file, objects in self.includers.items())

    def is_low(self, file):
        return any(file.startswith(f"{folder}/") for folder in self.low)

    def _read_symbols(self):
        self.definers = collections.defaultdict(set)  # a weak symbol: objects
        for obj in self.product_objects + sum(self.test_objects.values(), []):
            for line in must(["nm", "--defined-only", obj], self.build).splitlines():
                _, kind, name = line.split(maxsplit=2)
                if kind in "WVu":
                    self.definers[name].add(obj)

    def compile_together(self, sources, output):
        """Several files as one, as the product is built. An error text, or None."""
        file = self.folder / "together.cc"
        file.write_text("".join(f'#include "{source}"\n' for source in sources))
        return self.compile(sources[0], output, file)

    def compile(self, source, output, file=None):
        """With what is in the overlay; or instead of the source `file`. An error text, or None."""
        changed = self.overlay / os.path.relpath(source, self.tree)
        file = file or (changed if changed.exists() else source)
        words = self._plain_command(source)
        words += ["-iquote", str(self.overlay / "providers/uwarp")]
        try:
            done = run([*words, "-c", str(file), "-o", str(output)], self.build, timeout=COMPILE_LIMIT_S)
        except subprocess.TimeoutExpired:
            return "the compiler takes too long"
        return done.stderr or "the compiler failed" if done.returncode else None

    def link(self, suite, program, changed, only=None):
        """Links the suite, or of its tests `only` these objects. `changed` maps objects to the changed ones:
        they come first. An error text, or None."""
        command = must(["ninja", "-t", "commands", suite], self.build) if suite not in self._links else ""
        if command:
            self._links[suite] = shlex.split(command.splitlines()[-1])
        words = self._links[suite]
        words = words[words.index("&&") + 1 : len(words) - 1 - words[::-1].index("&&")]
        output = words.index("-o")
        tests = only or self.test_objects[suite]
        objects = dict.fromkeys(str(changed[o]) for o in changed if o in tests or o in self.product_objects)
        objects = [*objects, *(o for o in tests if o not in changed)]
        before = [w for w in words[:output] if not w.endswith(".o")]
        done = run([*before, *objects, str(self.recorder), "-o", str(program), *words[output + 2 :]], self.build)
        return done.stderr or "the linker failed" if done.returncode else None

    _links = {}

    def run_tests(self, program, names, seconds, environment=None):
        """Runs them until one fails. A hanging test is one that takes several times the usual time."""
        command = [*self.network, str(program), "--gtest_fail_fast", "--gtest_filter=" + ":".join(names)]
        command.append("--gtest_color=no")
        process = subprocess.Popen(
            command, cwd=self.build, text=True, errors="replace", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | (environment or {}),
        )
        timed_out = False
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            output = ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if timed_out:
                output, _ = process.communicate()
        self.last_output = output
        failed = re.search(r"^\[  FAILED  \] ([\w/.]+)", output, re.MULTILINE)
        if failed and not timed_out:
            return Outcome(failed[1])
        if process.returncode == 0 and not timed_out:
            return Outcome(None)
        started = re.findall(r"^\[ RUN      \] ([\w/.]+)", output, re.MULTILINE)
        return Outcome(started[-1] if started else names[0], timed_out)


class Calls:
    """Which tests call which functions, and how long they take."""

    def __init__(self, build, slowest):
        self.build = build
        self.slowest = slowest  # seconds; tests that take longer are left out
        self.tests = []
        self.places = collections.defaultdict(set)  # (file, line of a function): tests
        self.symbols = collections.defaultdict(set)  # (file, line): symbols
        self.unsteady = []
        self.with_io = set()  # tests that go through sockets or threads: slow to fail

    def record(self):
        for suite in SUITES:
            program = self.build.programs / suite
            path = self.build.folder / f"{suite}.calls"
            if not path.exists():
                written = path.with_suffix(".new")
                command = [*self.build.network, str(program), "--gtest_brief=1"]
                environment = os.environ | {"UWARP_CALLED_FUNCTIONS": str(written)}
                subprocess.run(command, cwd=self.build.build, env=environment, capture_output=True, timeout=900)
                written.rename(path)
            self._read(suite, program, path)

    def _read(self, suite, program, path):
        called = collections.defaultdict(set)
        test = None
        for line in path.read_text().splitlines():
            words = line.split()
            if words[0] != "test":
                called[int(words[0], 16)].add(test)
                continue
            test = Test(suite, words[1], int(words[2]) / 1e6)
            if words[3] == "failed":
                self.unsteady.append(test)
            elif test.seconds <= self.slowest:
                self.tests.append(test)
        self._locate(program, called)

    def _locate(self, program, called):
        functions = {}  # every function of the program, called or not
        for line in must(["nm", "--defined-only", str(program)], self.build.build).splitlines():
            at, kind, name = line.split(maxsplit=2)
            if kind in "TtWwi":
                functions.setdefault(int(at, 16), name)
        base = next(at for at, name in self._symbols(program) if name == "__executable_start")
        offsets = sorted(functions)
        feed = "\n".join(f"{at:x}" for at in offsets) + "\n"
        done = run([line_finder(), "-e", str(program)], self.build.build, input=feed)
        steady = set(self.tests)
        for at, line in zip(offsets, done.stdout.splitlines()):
            file, _, number = line.split(" ")[0].rpartition(":")
            file = os.path.normpath(file)
            if not file.startswith(f"{self.build.tree}/providers/") or not number.isdigit():
                continue
            place = os.path.relpath(file, self.build.tree), int(number)
            if not self.build.is_low(place[0]):
                self.with_io |= called.get(at - base, set())
            self.symbols[place].add(functions[at])
            self.places[place] |= called.get(at - base, set()) & steady

    def _symbols(self, program):
        for line in must(["nm", str(program)], self.build.build).splitlines():
            words = line.split()
            if len(words) == 3:
                yield int(words[0], 16), words[2]

    def of(self, mutant):
        """Tests that call the mutant's function."""
        return self._within(self.places, mutant)

    def symbols_of(self, mutant):
        return self._within(self.symbols, mutant)

    def _within(self, table, mutant):
        function = mutant.function
        found = set()
        for (file, line), values in table.items():
            if file == mutant.file and function.first <= line <= function.last:
                found |= values
        return found
