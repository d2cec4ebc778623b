# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# Not an adapter: as little of everything as a program can meet, to test how it takes its limits.
# rping and perftest still run, with small sizes and few requests.
max_qp = 4
max_qp_wr = 16
max_sge = 1
max_sge_rd = 1
max_inline_data = 0
max_qp_rd_atom = 1
max_qp_init_rd_atom = 1
max_cq = 8
max_cqe = 64
max_pd = 4
max_ah = 2
max_mr = 8
max_mr_size = 65536
max_mw = 2
max_srq = 1
max_srq_wr = 16
max_srq_sge = 1
max_dm_size = 0
max_msg_sz = 4096
max_mtu = 256
atomic_cap = none
fw_ver = 0
board_id = small
active_width = 1x
active_speed = sdr
