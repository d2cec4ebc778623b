// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/wrong_arguments.h"

#include <gtest/gtest-spi.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace wrong_arguments {
namespace {

constexpr const char* kHead =
    R"(# Wrong arguments

What calls of libibverbs and librdmacm answer to wrong arguments. Made by `tests/wrong_arguments_page.py` from the rows of
`tests/verbs/wrong_*_arguments.cc`, which make each of these calls in both personas, and look whether the objects can still be
used and destroyed afterwards.

The rule is that of the manual pages of rdma-core and of the kernel; where they differ, or the page says nothing, it is the
kernel's: mlx5 and rxe in the roce persona, siw in the iwarp persona, for what drivers decide. *uverbs*, *core*, *ucma* and
*cma* are the kernel's common code (`uverbs_cmd.c`, `uverbs_std_types_*.c`; `verbs.c`, `cache.c`; `ucma.c`; `cma.c`), and
names of libraries stand for checks that the library makes itself. Where a rule says *ours*, uwarp answers something else,
for the reason that is given. "ok" is success. What libraries dereference without a look, as most null pointers, is not here.

A handle that names no object: verbs that libibverbs does by a method of the kernel's ioctl answer ENOENT (all that destroy;
`ibv_create_qp`, `ibv_create_srq`, `ibv_reg_dm_mr`, `ibv_reg_dmabuf_mr`, `ibv_advise_mr`, `ibv_dereg_mr`), the others EINVAL:
`tests/verbs/handle_test.cc`.
)";

std::string name_of(int error) { return error == 0 ? "ok" : strerrorname_np(error); }

std::string escaped(const char* text) {
  std::string out;
  for (; *text != '\0'; ++text) out += *text == '|' ? std::string("\\|") : std::string(1, *text);
  return out;
}

void write_section(std::ostream& page, const char* title, const Rows& rows) {
  page << "\n## " << title << '\n';
  std::string call;
  for (const WrongArgument& row : rows) {
    if (call != row.call) {
      call = row.call;
      page << "\n### " << call << "\n\n| argument | wrong | iwarp | roce | rule |\n"
           << "| --- | --- | --- | --- | --- |\n";
    }
    page << "| " << escaped(row.argument) << " | " << escaped(row.wrong) << " | "
         << name_of(row.answer.iwarp) << " | " << name_of(row.answer.roce) << " | "
         << escaped(row.rule) << " |\n";
  }
}

}  // namespace

Foreign::Foreign()
    : context(open_device()),
      pd(ibv_alloc_pd(context.get())),
      cq(ibv_create_cq(context.get(), 16, nullptr, nullptr, 0)),
      channel(ibv_create_comp_channel(context.get())) {}

Ground::Ground(ibv_context* context)
    : context(context),
      pd(ibv_alloc_pd(context)),
      cq(ibv_create_cq(context, 64, nullptr, nullptr, 0)),
      qp(queue_pair()) {
  const auto start = reinterpret_cast<uintptr_t>(memory_.data());
  page_ = memory_.data() + (-start & (kPage - 1));
  EXPECT_EQ(to_init(qp.get()), 0);
}

Foreign& Ground::foreign() {
  if (foreign_ == nullptr) foreign_ = std::make_unique<Foreign>();
  return *foreign_;
}

Mr Ground::region(int access) const { return Mr(ibv_reg_mr(pd.get(), page_, kPage, access)); }

Srq Ground::shared_queue(uint32_t depth) const {
  ibv_srq_init_attr init = {nullptr, {depth, 1, 0}};
  return Srq(ibv_create_srq(pd.get(), &init));
}

Qp Ground::queue_pair(ibv_qp_type type) const {
  ibv_qp_init_attr init = init_attributes(cq.get());
  init.qp_type = type;
  return Qp(ibv_create_qp(pd.get(), &init));
}

ibv_ah_attr Ground::address() const {
  ibv_ah_attr attr = {};
  attr.is_global = 1;
  attr.port_num = 1;
  EXPECT_EQ(ibv_query_gid(context, 1, 0, &attr.grh.dgid), 0);
  return attr;
}

bool Ground::usable() {
  const Mr mr = region();
  ibv_sge place = {page_address(), 64, mr == nullptr ? 0 : mr->lkey};
  ibv_recv_wr wr = {1, nullptr, &place, 1};
  ibv_recv_wr* bad = nullptr;
  ibv_wc wc = {};
  return mr != nullptr && state_of(qp.get()) == IBV_QPS_INIT &&
         ibv_post_recv(qp.get(), &wr, &bad) == 0 && to_state(qp.get(), IBV_QPS_ERR) == 0 &&
         ibv_poll_cq(cq.get(), 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR &&
         ibv_req_notify_cq(cq.get(), 0) == 0;
}

namespace {

void expect_answer(ibv_context* context, const WrongArgument& row) {
  Ground ground(context);
  const int expected = ground.roce() ? row.answer.roce : row.answer.iwarp;
  errno = 0;
  EXPECT_EQ(name_of(row.ask(ground)), name_of(expected));
  EXPECT_TRUE(ground.usable());
}

bool files_fall_to(size_t count, std::chrono::milliseconds limit) {
  return wait_until([count] { return open_files() <= count; }, limit);
}

/// Makes every call and expects its answer, and that nothing else has happened.
void expect_answers(ibv_context* context, const Rows& rows) {
  for (const WrongArgument& row : rows) {
    SCOPED_TRACE(std::string(row.call) + ", " + row.argument + ": " + row.wrong);
    const size_t before = open_files();
    expect_answer(context, row);
    // Connections end a moment after their queue pairs; what a library opens once is no leak.
    if (files_fall_to(before, std::chrono::milliseconds(100))) continue;
    const size_t after = open_files();
    expect_answer(context, row);
    EXPECT_TRUE(files_fall_to(after, kPatience)) << open_file_names();
  }
}

class WrongArguments : public VerbsTest {};

TEST_F(WrongArguments, OfDevices) { expect_answers(context(), of_devices()); }
TEST_F(WrongArguments, OfQueues) { expect_answers(context(), of_queues()); }
TEST_F(WrongArguments, OfMemory) { expect_answers(context(), of_memory()); }
TEST_F(WrongArguments, OfQueuePairs) { expect_answers(context(), of_queue_pairs()); }
TEST_F(WrongArguments, OfTransitions) { expect_answers(context(), of_transitions()); }
TEST_F(WrongArguments, OfDatagrams) { expect_answers(context(), of_datagrams()); }
TEST_F(WrongArguments, OfRdmaCm) { expect_answers(context(), of_rdma_cm()); }

// A row that no answer could contradict would be worth nothing.
TEST_F(WrongArguments, AnotherAnswerIsNoticed) {
  Rows rows = of_devices();
  rows.erase(rows.begin() + 1, rows.end());
  rows[0].answer = 0;
  EXPECT_NONFATAL_FAILURE(expect_answers(context(), rows), "EINVAL");
}

/// No test: tests/wrong_arguments_page.py asks for the page by it.
TEST(WrongArgumentsPage, DISABLED_Write) {
  const char* const path = std::getenv("UWARP_TEST_PAGE");
  ASSERT_NE(path, nullptr);
  std::ofstream page(path);
  page << kHead;
  write_section(page, "Devices", of_devices());
  write_section(page, "Queues", of_queues());
  write_section(page, "Memory and domains", of_memory());
  write_section(page, "Queue pairs", of_queue_pairs());
  write_section(page, "Changes of a queue pair", of_transitions());
  write_section(page, "Datagrams", of_datagrams());
  write_section(page, "rdma_cm", of_rdma_cm());
}

}  // namespace
}  // namespace wrong_arguments
