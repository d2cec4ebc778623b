# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A process of its own that lets one raw peer at the memory of a file: test_rfc7306.py starts it.

usage: shared_cell.py FILE DEVICE. Prints port, STag and Tagged Offset, and ends with its input."""

import sys

from pyverbs.device import Context

from dut import TARGET_BYTES, Dut, Memory


def main(path, device):
    with open(path, "r+b") as file, Context(name=device) as context, \
            Dut(context, target=Memory(TARGET_BYTES, file=file)) as dut:
        print(dut.listen(), dut.mr.rkey, dut.target.address, flush=True)
        dut.request()
        dut.accept()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
