# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# What a ConnectX-5 reports. The device stays one of uwarp's: mlx5dv and other interfaces of the
# vendor do not take it.
# Source: ibv_devinfo -v of a ConnectX-5 in https://github.com/open-mpi/ompi/pull/6137 (limits,
# vendor, firmware, board) and in https://github.com/openucx/ucx/issues/10430 (max_msg_sz, device
# memory); counters: drivers/infiniband/hw/mlx5/counters.c of Linux. max_inline_data is uwarp's own:
# that of the adapter depends on the elements of a request. In brackets what the adapter has where
# uwarp has less.
persona = roce
# [262144]
max_qp = 65536
# [32768]
max_qp_wr = 16384
max_sge = 30
max_sge_rd = 30
max_inline_data = 512
max_qp_rd_atom = 16
max_qp_init_rd_atom = 16
# [16777216]
max_cq = 65536
# [4194303]
max_cqe = 4194303
# [16777216]
max_mr = 262144
# [16777216]
max_pd = 65536
max_dm_size = 131072
max_msg_sz = 0x40000000
max_mtu = 4096
atomic_cap = hca
vendor_id = 0x02c9
vendor_part_id = 4119
hw_ver = 0
fw_ver = 16.23.1020
hca_type = MT4119
board_id = MT_0000000008
active_width = 4x
active_speed = edr
hw_counter.duplicate_request = 0
hw_counter.out_of_sequence = 0
hw_counter.out_of_buffer = held_receives
hw_counter.local_ack_timeout_err = peer_timeouts
hw_counter.packet_seq_err = 0
hw_counter.rnr_nak_retry_err = rnr_timeouts
hw_counter.implied_nak_seq_err = 0
hw_counter.rx_read_requests = InRdmaReads
hw_counter.rx_write_requests = InRdmaWrites
hw_counter.rx_atomic_requests = InRdmaAtomics
hw_counter.req_cqe_flush_error = flushed_sends
hw_counter.resp_cqe_flush_error = flushed_receives
