# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# What an Intel E810 reports. Its driver, irdma, speaks iWARP and RoCE v2: so the persona is left to
# UWARP_PERSONA.
# Source: ibv_devinfo -v of an E810 in https://github.com/deepseek-ai/3FS/issues/192 (limits, vendor,
# firmware); drivers/infiniband/hw/irdma/user.h of Linux (inline data, message size). uwarp's own
# names of counters are those of this driver. In brackets what the adapter has where uwarp has less.
max_qp = 4092
max_qp_wr = 8127
max_sge = 6
max_sge_rd = 6
max_inline_data = 101
max_qp_rd_atom = 8
max_qp_init_rd_atom = 8
max_cq = 8189
max_cqe = 1048574
# [4194301]
max_mr = 262144
max_mr_size = 0x200000000000
# [262141]
max_pd = 65536
# [131072]
max_ah = 65536
max_mw = 0
max_srq = 0
max_dm_size = 0
max_msg_sz = 0x7fffffff
max_mtu = 4096
atomic_cap = none
vendor_id = 0x8086
vendor_part_id = 5522
hw_ver = 2
fw_ver = 1.74
hca_type = irdma
board_id =
active_width = 4x
active_speed = edr
