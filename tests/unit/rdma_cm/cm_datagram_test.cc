// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// rdma_cm ids of datagrams in the roce persona: what librdmacm's UD code asks for and gets.
#include <gtest/gtest.h>

#include <cerrno>

#include "connect/qp_attributes.h"
#include "protocol/wire/sidr_message.h"
#include "unit/rdma_cm/cm_channel.h"

namespace uwarp {
namespace {

class CmDatagrams : public RdmaCmNodeTest {
 protected:
  CmDatagrams() : RdmaCmNodeTest(Persona::kRoce) { channel_.usual_port_space = RDMA_PS_UDP; }

  static ConnectParameters peer(uint32_t qkey = kCmQkey) {
    ConnectParameters told;
    told.qp_number = 0xc35105;
    told.qkey = qkey;
    told.private_data = {std::byte{'o'}, std::byte{'k'}};
    return told;
  }
  ib_uverbs_qp_attr attributes(uint32_t id, uint32_t state = 1) {
    ib_uverbs_qp_attr out{};
    EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_INIT_QP_ATTR,
                               rdma_ucm_init_qp_attr{address_of(out), id, state}, sizeof out),
              0);
    return out;
  }
  uint32_t requested_id(rdma_ucm_event_resp& event, std::shared_ptr<FakeConnection>& asked) {
    listening_id();
    asked = request();
    EXPECT_EQ(channel_.event(event), 0);
    EXPECT_EQ(event.event, kConnectRequest);
    return event.id;
  }
};

TEST_F(CmDatagrams, ThePortAndItsSpaceAreOfUdp) {
  EXPECT_EQ(channel_.bind(channel_.create(), 7174), 0);
  EXPECT_TRUE(transport_.last_options.datagram);
  EXPECT_EQ(transport_.last_options.port_space, RDMA_PS_UDP);
}

// In port space IB the queue pair type decides.
TEST_F(CmDatagrams, PortSpaceIb) {
  EXPECT_EQ(channel_.bind(channel_.create(1, RDMA_PS_IB, 2), 7174), 0);
  EXPECT_FALSE(transport_.last_options.datagram);
  EXPECT_EQ(channel_.bind(channel_.create(1, RDMA_PS_IB, 4), 7174), 0);
  EXPECT_TRUE(transport_.last_options.datagram);
  EXPECT_EQ(transport_.last_options.port_space, RDMA_PS_IB);
}

TEST_F(CmDatagrams, IpOverInfiniBandIsForOtherLinks) {
  const uint32_t id = channel_.create(1, RDMA_PS_IPOIB);
  ASSERT_EQ(channel_.resolve(id), 0);
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kAddressError);
  EXPECT_EQ(static_cast<int>(event.status), -EINVAL);
}

TEST_F(CmDatagrams, TheQueuePairsAttributesAreThoseOfInitInEveryState) {
  const uint32_t id = resolved_id();
  for (uint32_t state = 0; state <= 6; ++state) {
    const ib_uverbs_qp_attr out = attributes(id, state);
    EXPECT_EQ(out.qp_attr_mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    EXPECT_EQ(out.qp_state, state);
    EXPECT_EQ(out.port_num, 1);
    EXPECT_EQ(out.qkey, 0x01234567u);
  }
  ib_uverbs_qp_attr out{};
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_INIT_QP_ATTR,
                             rdma_ucm_init_qp_attr{address_of(out), id, 7}, sizeof out),
            EINVAL);
}

TEST_F(CmDatagrams, TheActiveSideGetsTheAddress) {
  const uint32_t id = resolved_id();
  (void)attributes(id);
  ASSERT_EQ(channel_.connect(id, "hello"), 0);
  EXPECT_TRUE(transport_.last_connect.options.datagram);
  EXPECT_EQ(transport_.last_connect.parameters.private_data.size(), 5u);
  EXPECT_EQ(port_of(transport_.last_connect.remote), 7174);
  owner()->connection_established({}, {}, peer());
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kEstablished);
  const rdma_ucm_ud_param& ud = event.param.ud;
  EXPECT_EQ(ud.qp_num, 0xc35105u);
  EXPECT_EQ(ud.qkey, kCmQkey);
  EXPECT_EQ(ud.private_data_len, 2);
  EXPECT_EQ(ud.private_data[0], 'o');
  EXPECT_EQ(ud.ah_attr.is_global, 1);
  EXPECT_EQ(ud.ah_attr.port_num, 1);
  EXPECT_EQ(ud.ah_attr.grh.dgid[12], 127);
  EXPECT_EQ(ud.ah_attr.grh.dgid[11], 0xff);
  EXPECT_EQ(channel_.next_event(), kNone);
  // There is no event for the end of such an id.
  EXPECT_EQ(channel_.disconnect(id), 0);
  EXPECT_EQ(channel_.next_event(), kNone);
}

// Like the kernel: the id's queue pair cannot send with two Q_Keys.
TEST_F(CmDatagrams, AQkeyThatDoesNotFit) {
  for (const uint32_t qkey : {0u, 0x777u}) {
    const uint32_t id = resolved_id();
    (void)attributes(id);
    ASSERT_EQ(channel_.connect(id), 0);
    owner()->connection_established({}, {}, peer(qkey));
    rdma_ucm_event_resp event{};
    ASSERT_EQ(channel_.event(event), 0);
    EXPECT_EQ(event.event, kAddressError);
    EXPECT_EQ(static_cast<int>(event.status), -EINVAL);
  }
  // Without a queue pair any Q_Key is accepted.
  const uint32_t id = resolved_id();
  ASSERT_EQ(channel_.connect(id), 0);
  owner()->connection_established({}, {}, peer(0x777));
  EXPECT_EQ(channel_.next_event(), kEstablished);
  EXPECT_EQ(attributes(id).qkey, 0x777u);
}

TEST_F(CmDatagrams, ANoIsUnreachableWithItsReason) {
  const uint32_t id = resolved_id();
  ASSERT_EQ(channel_.connect(id), 0);
  const std::byte why[] = {std::byte{'n'}, std::byte{'o'}};
  owner()->connection_rejected({}, static_cast<int>(SidrStatus::kRejected), why);
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kUnreachable);
  EXPECT_EQ(event.status, 2u);
  EXPECT_EQ(event.param.ud.private_data_len, 2);
  EXPECT_EQ(event.param.ud.private_data[1], 'o');
}

TEST_F(CmDatagrams, NoReplyIsATimeOut) {
  const uint32_t id = resolved_id();
  ASSERT_EQ(channel_.connect(id), 0);
  owner()->connection_failed({}, -ETIMEDOUT);
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kUnreachable);
  EXPECT_EQ(static_cast<int>(event.status), -ETIMEDOUT);
}

TEST_F(CmDatagrams, ThePassiveSideGetsARequestAndNoMoreEvents) {
  rdma_ucm_event_resp event{};
  std::shared_ptr<FakeConnection> asked;
  const uint32_t id = requested_id(event, asked);
  EXPECT_EQ(event.param.ud.private_data_len, 2);
  EXPECT_EQ(event.param.ud.private_data[0], 'h');
  EXPECT_EQ(event.param.ud.qp_num, 0u);
  EXPECT_EQ(attributes(id).qkey, kCmQkey);
  ASSERT_EQ(channel_.accept(id, 99, "welcome"), 0);
  EXPECT_TRUE(asked->accepted);
  EXPECT_EQ(asked->given.qp_number, 0x123456u);
  EXPECT_EQ(asked->given.qkey, kCmQkey);
  EXPECT_EQ(asked->given.private_data.size(), 7u);
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_EQ(channel_.accept(id, 99), EINVAL);
  EXPECT_EQ(channel_.reject(id), EINVAL);
  EXPECT_EQ(channel_.destroy(id), 0);
}

TEST_F(CmDatagrams, AcceptMayNameAQkey) {
  rdma_ucm_event_resp event{};
  std::shared_ptr<FakeConnection> asked;
  ASSERT_EQ(channel_.accept(requested_id(event, asked), 99, "", 0x4711), 0);
  EXPECT_EQ(asked->given.qkey, 0x4711u);
  // But not another Q_Key than that of the queue pair.
  const uint32_t id = requested_id(event, asked);
  (void)attributes(id);
  EXPECT_EQ(channel_.accept(id, 99, "", 0x4711), EINVAL);
  EXPECT_EQ(asked->end, End::kRejected);
}

TEST_F(CmDatagrams, PrivateDataHasTheKernelsLimits) {
  uint32_t id = resolved_id();
  EXPECT_EQ(channel_.connect(id, std::string(181, 'x')), EINVAL);
  EXPECT_EQ(channel_.connect(id, std::string(180, 'x')), 0);
  rdma_ucm_event_resp event{};
  std::shared_ptr<FakeConnection> asked;
  id = requested_id(event, asked);
  EXPECT_EQ(channel_.reject(id, std::string(137, 'x')), EINVAL);
  EXPECT_EQ(channel_.reject(id, std::string(136, 'x')), 0);
  EXPECT_EQ(asked->given.private_data.size(), 136u);
  // Like the kernel, a wrong accept rejects the request.
  id = requested_id(event, asked);
  EXPECT_EQ(channel_.accept(id, 99, std::string(137, 'x')), EINVAL);
  EXPECT_EQ(asked->end, End::kRejected);
  EXPECT_EQ(channel_.accept(id, 99), EINVAL);
}

TEST_F(CmDatagrams, ARequestThatIsDestroyedIsRejected) {
  rdma_ucm_event_resp event{};
  std::shared_ptr<FakeConnection> asked;
  EXPECT_EQ(channel_.destroy(requested_id(event, asked)), 0);
  EXPECT_EQ(asked->end, End::kRejected);
}

TEST_F(CmDatagrams, AQuestionEndsWithItsId) {
  const uint32_t id = resolved_id();
  ASSERT_EQ(channel_.connect(id), 0);
  EXPECT_EQ(channel_.destroy(id), 2);
  EXPECT_EQ(transport_.connection->end, End::kAborted);
}

TEST_F(CmDatagrams, RequestsAreBoundedByTheBacklog) {
  listening_id(2);
  bool taken = false;
  for (const bool expected : {true, true, false}) {
    request(&taken);
    EXPECT_EQ(taken, expected);
  }
}

}  // namespace
}  // namespace uwarp
