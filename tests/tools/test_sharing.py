# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Two threads with a queue pair and completion queues each share nothing on the data path: no cache line that
both write, so no lock either, and no file of the kernel. What they do share: docs/architecture.md."""

import places
import pytest
import sharing


@pytest.mark.parametrize("work, carrier", [("send", "tcp"), ("send", "memory"), ("write", "memory")])
def test_threads_with_nothing_in_common_share_nothing(work, carrier):
    found = sharing.measure(places.BUILD, work, carrier)
    if found is None:
        pytest.skip("this processor does not stop behind each instruction")
    assert found.lines() == {}
    assert found.files() == set()
    answers = {"poll for the answer", "post of a receive"} if work == "send" else set()
    assert set(found.costs()) == {"post of a request", "poll for its end"} | answers
    # It looks now and then whether threads still poll. An answer may take as long where cores are busy.
    if work == "write":
        assert found.helper_turns * 10 < found.messages


@pytest.mark.parametrize("text, writes", [
    ("mov    %rax,0x10(%rbx)", True),
    ("mov    0x10(%rbx),%rax", False),
    ("mov    0x10(%rbx,%rcx,8),%rax", False),
    ("lock cmpxchg %rdx,(%rdi)", True),
    ("lock xadd %eax,0x34(%r12)", True),
    ("xchg   %eax,(%rdi)", True),
    ("xchg   (%rdi),%eax", True),
    ("movups %xmm0,(%rax,%rdx,1)", True),
    ("addl   $0x1,0x8(%rsi)", True),
    ("cmpl   $0x1,0x8(%rsi)", False),
    ("test   %eax,(%rdi)", False),
    ("lea    0x8(%rsi),%rax", False),
    ("sete   0x8(%rsi)", True),
    ("rep stos %al,%es:(%rdi)", True),
    ("mov    %rax,%fs:0x10(%rbx)", False),
    ("nopw   0x0(%rax,%rax,1)", False),
    ("call   *0x8(%rax)", False),
    ("mov    %eax,0x2a(%rip)        # 4030 <counter>", True)])
def test_writes_are_told_from_reads(text, writes):
    found = sharing.decoded(text)
    assert isinstance(found, sharing.Write) == writes
    if writes:
        assert found.atomic == (text.startswith("lock") or text.startswith("xchg"))


def test_places_are_read():
    assert sharing.decoded("mov %rax,-0x10(%rbx,%r12,8)") == sharing.Write(3, 12, 8, -0x10, False)
    assert sharing.decoded("mov %eax,0x2a(%rip)        # 4030 <counter>") == \
        sharing.Write(None, None, 0, 0x4030, False)
    assert sharing.decoded("syscall") is sharing.SYSTEM_CALL
