#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""docs/wrong-arguments.md is made from the rows of tests/verbs/wrong_*_arguments.cc, which the program
of these tests writes.

wrong_arguments_page.py VERBS_TESTS           writes the page
wrong_arguments_page.py --check VERBS_TESTS   status 1 if it differs from what would be written
"""

import os
import pathlib
import subprocess
import sys
import tempfile

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "wrong-arguments.md"


def render(program):
    with tempfile.TemporaryDirectory() as folder:
        written = pathlib.Path(folder) / "page"
        subprocess.run([program, "--gtest_also_run_disabled_tests", "--gtest_brief=1",
                        "--gtest_filter=WrongArgumentsPage.DISABLED_Write"], check=True,
                       env={**os.environ, "UWARP_TEST_PAGE": str(written)}, timeout=60)
        return written.read_text()


def main(arguments):
    text = render(arguments[-1])
    if arguments[:1] != ["--check"]:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE} is out of date: run tests/wrong_arguments_page.py {arguments[-1]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
