# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# rxe, the RoCE v2 adapter in software of the Linux kernel.
# Source: drivers/infiniband/sw/rxe/rxe_param.h (at commit 018c6837f3e6) and rxe_hw_counters.c (at
# 0f2cb7cf8033) of Linux. The driver knows no vendor, part or firmware.
persona = roce
max_qp = 65536
max_qp_wr = 16384
max_sge = 32
max_sge_rd = 32
max_inline_data = 400
max_qp_rd_atom = 128
max_qp_init_rd_atom = 128
max_cq = 16384
max_cqe = 32767
max_pd = 32764
max_ah = 100
max_mr = 262144
max_mw = 0
max_srq = 960
max_srq_wr = 16384
max_srq_sge = 27
max_dm_size = 0
max_msg_sz = 0x800000
max_mtu = 4096
atomic_cap = hca
vendor_id = 0
vendor_part_id = 0
hw_ver = 0
fw_ver = 0.0.0
hca_type = rxe
board_id =
active_width = 1x
active_speed = sdr
hw_counter.sent_pkts = port_xmit_packets
hw_counter.rcvd_pkts = port_rcv_packets
hw_counter.duplicate_request = 0
hw_counter.out_of_seq_request = 0
hw_counter.rcvd_rnr_err = 0
hw_counter.send_rnr_err = held_receives
hw_counter.rcvd_seq_err = 0
hw_counter.ack_deferred = 0
hw_counter.retry_exceeded_err = peer_timeouts
hw_counter.retry_rnr_exceeded_err = rnr_timeouts
hw_counter.completer_retry_err = 0
hw_counter.send_err = failed_qps
hw_counter.link_downed = link_downed
hw_counter.rdma_sends = OutRdmaSends
hw_counter.rdma_recvs = InRdmaSends
