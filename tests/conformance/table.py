#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""docs/conformance.md says which tests show that each requirement of the RFCs is met.

The requirements are the rows of requirements.csv. A comment above a test, `// Proves: ID ID ...`
or `# Proves: ID ID ...`, names those that the test proves. In a table of cases the comment may
stand at a case; it belongs to the next test below. A requirement that no test can show has a state
(review or n/a) and a reason in requirements.csv.

A comment of the code where a rule is decided names its rows, `RFC 5040-4.1-a` or, for several of a
section, `RFC 5040-4.1-a/b`. A row without such a place says why in the column no_place: in words,
or `as ID` where another row, which has one, asks the same.

table.py           writes the page
table.py --check   status 1, and a line for each reason, if a row is missing, a tag or comment names
                   no row, a row has neither test nor reason, or neither place nor reason, or the
                   page differs from what would be written
"""

import collections
import csv
import pathlib
import re
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
ROWS = TESTS / "conformance" / "requirements.csv"
PAGE = ROOT / "docs" / "conformance.md"

# Rows per document, so that a lost row is found.
DOCUMENTS = {
    "5040": ("RFC 5040, RDMAP", 222),
    "5041": ("RFC 5041, DDP", 120),
    "7306": ("RFC 7306, atomics and Immediate Data", 112),
    "8797": ("RFC 8797, private data of RPC-over-RDMA", 33),
    "4296": ("RFC 4296, architecture (informational)", 17),
    "5044": ("RFC 5044, MPA", 36),
    "6581": ("RFC 6581, MPA revision 2", 21),
    "5042": ("RFC 5042, security (derived)", 18),
}
STATES = ("automated", "review", "n/a")
CODE = (ROOT / "providers" / "uwarp", ROOT / "rpcrdma")
PLACE = re.compile(rf"\b((?:{'|'.join(DOCUMENTS)})-(?:[A-Z\d][\d.]*-)?)([a-z\d]+(?:/[a-z\d]+)*)")
TAG = re.compile(r"^\s*(?://|#)\s*Proves:\s*(.*)$")
CPP_TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+), *(\w+)\)")
FUZZ_TARGET = re.compile(r'^extern "C" int LLVMFuzzerTestOneInput\(')
PYTHON_TEST = re.compile(r"^\s*def (test_\w+)\(")

HEAD = """# Conformance

Made by `tests/conformance/table.py` from `tests/conformance/requirements.csv`, where each row has
its requirement in a few words, and from the tests, which name the rows that they prove. An id is
RFC, section and a letter. States:

- automated: the named tests fail if the requirement is not met;
- review: met as far as reading tells; the reason says why no test shows it;
- n/a: not ours to meet, or impossible to judge where the tests run.

"In the code" is the file where a comment names the row: the rule is decided there. Paths without
`rpcrdma` are relative to `providers/uwarp`. Otherwise it is the row that asks the same, or why there
is no such place.

Where uwarp leaves the letter of an RFC: [spec-exceptions.md](spec-exceptions.md). The tests of such
rows are about what uwarp does instead.

"""


def read_rows():
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


def test_files():
    for folder, endings in ((TESTS, (".cc", ".h", ".py")), (ROOT / "pyverbs-tests", (".py",))):
        for path in sorted(folder.rglob("*")):
            if path.suffix in endings and path != pathlib.Path(__file__).resolve():
                yield path


def test_at(path, line):
    """The name of the test that begins at this line, or None."""
    if found := CPP_TEST.match(line):
        return f"{found[1]}.{found[2]}"
    if found := PYTHON_TEST.match(line):
        return f"{path.name}: {found[1]}"
    return path.stem if FUZZ_TARGET.match(line) else None


def read_tags(path):
    """(id, test or None, line) of each tag in a file, in order."""
    waiting = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        tag = TAG.match(line)
        if tag:
            waiting += [(identifier, number) for identifier in tag[1].split()]
            continue
        test = test_at(path, line)
        if test:
            yield from ((identifier, test, at) for identifier, at in waiting)
            waiting = []
    yield from ((identifier, None, at) for identifier, at in waiting)


def collect(rows):
    """Tests by row id, and complaints about the tags."""
    known = {row["id"] for row in rows}
    tests, complaints = collections.defaultdict(list), []
    for path in test_files():
        for identifier, test, number in read_tags(path):
            where = f"{path.relative_to(ROOT)}:{number}"
            if identifier not in known:
                complaints.append(f"{where}: there is no row {identifier}")
            elif test is None:
                complaints.append(f"{where}: no test follows the tag of {identifier}")
            elif test not in tests[identifier]:
                tests[identifier].append(test)
    return tests, complaints


def read_places():
    """By row id the files of which a comment names it."""
    places = collections.defaultdict(list)
    for folder in CODE:
        base = folder if folder == CODE[0] else ROOT
        for path in sorted(folder.rglob("*")):
            if path.suffix not in (".cc", ".h"):
                continue
            comments = "\n".join(line.partition("//")[2] for line in path.read_text().splitlines())
            for section, letters in PLACE.findall(comments):
                for letter in letters.split("/"):
                    files = places[section + letter]
                    if (name := path.relative_to(base).as_posix()) not in files:
                        files.append(name)
    return places


def check_places(rows, places):
    for identifier in sorted(places.keys() - {row["id"] for row in rows}):
        yield f"{places[identifier][0]}: there is no row {identifier}"
    for row in rows:
        identifier, reason = row["id"], row["no_place"]
        if identifier in places and reason:
            yield f"{identifier}: {places[identifier][0]} names it, and yet it has no_place"
        if identifier not in places and not reason and row["state"] == "automated":
            yield f"{identifier}: no comment of the code names it, and no_place does not say why"
        if reason.startswith("as ") and reason[3:] not in places:
            yield f"{identifier}: no_place names {reason[3:]}, which has no place"


def check_rows(rows, tests):
    counts = collections.Counter(row["id"].split("-")[0] for row in rows)
    for document, (_, expected) in DOCUMENTS.items():
        if counts[document] != expected:
            yield f"RFC {document}: {counts[document]} rows, not {expected}"
    for identifier, count in collections.Counter(row["id"] for row in rows).items():
        if count > 1:
            yield f"{identifier}: {count} rows"
    for row in rows:
        identifier, state = row["id"], row["state"]
        if state not in STATES:
            yield f"{identifier}: unknown state {state!r}"
        if state == "automated" and not tests.get(identifier):
            yield f"{identifier}: no test proves it"
        if state != "automated" and tests.get(identifier):
            yield f"{identifier}: {state}, and yet {tests[identifier][0]} proves it"
        if (state == "automated") != (not row["reason"]):
            yield f"{identifier}: a reason goes with review and n/a, and with them only"


def share(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


def summary(rows):
    yield ("| document | rows | automated | review | n/a | applicable MUST (NOT) | automated |\n"
           "| --- | --- | --- | --- | --- | --- | --- |\n")
    for document, name in [*((key, value[0]) for key, value in DOCUMENTS.items()), ("", "all")]:
        mine = [row for row in rows if row["id"].startswith(document)]
        states = collections.Counter(row["state"] for row in mine)
        must = [row for row in mine if row["level"].startswith("MUST") and row["state"] != "n/a"]
        done = sum(row["state"] == "automated" for row in must)
        yield (f"| {name} | {len(mine)} | {states['automated']} | {states['review']} | "
               f"{states['n/a']} | {len(must)} | {done} ({share(done, len(must))}) |\n")


def render(rows, tests, places):
    lines = [HEAD, *summary(rows)]
    for document, (name, _) in DOCUMENTS.items():
        lines.append(f"\n## {name}\n\n| id | level | state | in the code | test or reason |\n"
                     "| --- | --- | --- | --- | --- |\n")
        for row in rows:
            if not row["id"].startswith(document + "-"):
                continue
            proof = "<br>".join(f"`{test}`" for test in tests.get(row["id"], [])) or row["reason"]
            files = "<br>".join(f"`{name}`" for name in places.get(row["id"], []))
            lines.append(f"| {row['id']} | {row['level']} | {row['state']} | "
                         f"{files or row['no_place'] or '-'} | {proof} |\n")
    return "".join(lines)


def main(arguments):
    rows = read_rows()
    tests, complaints = collect(rows)
    places = read_places()
    complaints += [*check_rows(rows, tests), *check_places(rows, places)]
    page = render(rows, tests, places)
    if arguments != ["--check"]:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        complaints.append(f"{PAGE} is out of date: run tests/conformance/table.py")
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
