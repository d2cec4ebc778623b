# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# siw, the iWARP adapter in software of the Linux kernel.
# Source: drivers/infiniband/sw/siw/siw.h, siw_verbs.c and include/uapi/rdma/siw-abi.h of Linux. In
# brackets what siw has where uwarp has less. siw has no counters of its own, and its speed is that
# of the network device.
persona = iwarp
# [102400]
max_qp = 65536
# [32768]
max_qp_wr = 16384
max_sge = 6
max_sge_rd = 1
max_inline_data = 80
max_qp_rd_atom = 128
max_qp_init_rd_atom = 128
# [102400]
max_cq = 65536
max_cqe = 3276800
# [1024000]
max_mr = 262144
# [102400]
max_pd = 65536
max_mw = 0
# [102400]
max_srq = 16384
# [327680]
max_srq_wr = 16384
max_srq_sge = 6
max_dm_size = 0
# [4294967295]
max_msg_sz = 0x80000000
atomic_cap = none
vendor_id = 0x626d74
vendor_part_id = 0
hw_ver = 0
fw_ver = 0.0.0
hca_type = siw
board_id =
