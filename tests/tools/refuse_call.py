# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""refuse_call.py CALL ERRNO COMMAND...: a command whose system call of that name is refused, as by the
policy of a container or of a service."""

import os
import sys

import seccomp

name, error = sys.argv[1:3]
rules = seccomp.SyscallFilter(seccomp.ALLOW)
rules.add_rule(seccomp.ERRNO(int(error)), name)
rules.load()
os.execvp(sys.argv[3], sys.argv[3:])
