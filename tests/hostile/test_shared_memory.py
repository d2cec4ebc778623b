# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""How two processes leave TCP for shared memory, as strangers see it, and a peer that does it wrong."""

import pytest

import places


@pytest.mark.parametrize("attack", ["flood", "stay", "descriptors", "linger"])
def test_strangers_at_mailboxes(honest, attacker, seconds, attack):
    crowd = [attacker("mailbox", attack) for _ in range(2)]
    for each in crowd:
        each.wait_ready()
        # A mailbox is there while a connection is about to leave TCP.
        places.wait_until(lambda one=each: "called 1" in one.output or not one.running(),
                          lambda one=each: one)
    honest.endure(seconds, *crowd)
    for each in crowd:
        each.reap()
    honest.recover()


def test_a_peer_that_locks_the_memory(honest, attacker, seconds):
    """What an idle ring has used goes back to the system, which the peer can hold up."""
    peer = attacker("peer", "held", honest.ADDRESS, honest.port, own=True)
    peer.wait_ready()
    places.wait_until(lambda: "holding" in peer.output or not peer.running(), lambda: peer)
    if "no userfaultfd" in peer.output:
        pytest.skip("the kernel gives no userfaultfd")
    honest.endure(max(seconds, 3), peer)  # an idle ring is looked at after a second
    peer.reap()
    honest.recover()


# As another user each of them gets no further than the first two.
@pytest.mark.parametrize("attack, own", [
    ("linger", False), ("crowd", False), ("linger", True), ("descriptors", True), ("wrong", True),
    ("place", True), ("bell", True), ("urgent", True)])
def test_hostile_peers(honest, attacker, seconds, attack, own):
    peer = attacker("peer", attack, honest.ADDRESS, honest.port, own=own)
    peer.wait_ready()
    # Another user gets a letter, too, but nothing of what it sends is taken.
    goal = "switched" if own and attack in ("place", "bell", "urgent") else "answered"
    places.wait_until(lambda: goal in peer.output or not peer.running(), lambda: peer)
    honest.endure(seconds, peer)
    if not own:
        assert "switched" not in peer.output, peer
    assert "given away" not in peer.output, peer
    peer.reap()
    honest.recover()
