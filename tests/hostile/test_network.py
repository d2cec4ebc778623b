# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""What every TCP client can do, done by another user of the machine, beside honest connections."""

import pytest

# An address of its own: what a flood from the address of an honest client costs is in
# docs/security.md.
SOURCE = "127.0.0.66"


@pytest.mark.parametrize("attack", ["half_open", "garbage"])
def test_listener(honest, attacker, seconds, attack):
    one = attacker(attack, honest.ADDRESS, honest.port, SOURCE)
    one.wait_ready()
    honest.endure(seconds, one)
    one.reap()
    honest.recover()
