# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The parts of bench/run, one noun per file."""
