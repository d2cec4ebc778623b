// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Letters about shared memory: which of them get in, what comes of what they bring, and that no
// thread that serves others waits for it.
#include "connect/mailbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "progress/progress.h"
#include "unit/eventually.h"
#include "unit/lingering_socket.h"

namespace uwarp {
namespace {

class Reader : public Mailbox::Owner {
 public:
  void mail_arrived(Mailbox&, Mail& mail) override {
    const std::lock_guard guard(mutex_);
    letter = mail.letter;
    pid = mail.pid;
    uid = mail.uid;
    fds += mail.fds.size();
    ++letters;
  }
  std::atomic<int> letters{0};
  std::atomic<size_t> fds{0};
  Letter letter;
  pid_t pid = 0;
  uid_t uid = 0;

 private:
  std::mutex mutex_;
};

size_t open_files() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

class MailboxTest : public testing::Test {
 protected:
  std::shared_ptr<Mailbox> open(uint64_t number, const std::shared_ptr<Mailbox::Owner>& owner) {
    return Mailbox::open({progress_, errands_}, number, owner).value();
  }
  /// What the thread that progresses does, until `done`.
  template <class Done>
  bool serve_until(Done done) {
    return eventually([&] {
      (void)progress_.pass();
      return done();
    });
  }

  Progress progress_;
  Errands errands_;
  std::shared_ptr<Reader> owner_ = std::make_shared<Reader>();
  std::shared_ptr<Reader> other_ = std::make_shared<Reader>();
};

TEST_F(MailboxTest, ALetterSaysWhoHasSentIt) {
  const auto mailbox = open(0x123456789abc, owner_), sender = open(0x123456789abc, other_);
  ASSERT_EQ(sender->send(mailbox->name(), {77, 78}, {}), 0);
  ASSERT_TRUE(serve_until([&] { return owner_->letters == 1; }));
  EXPECT_EQ(owner_->letter.number, 0x123456789abcu);
  EXPECT_EQ(owner_->letter.reply_to, sender->name());
  EXPECT_EQ(owner_->letter.secret.at, 77u);
  EXPECT_EQ(owner_->letter.secret.label, 78u);
  EXPECT_EQ(owner_->pid, getpid());
  EXPECT_EQ(owner_->uid, getuid());
  sender->close();
}

TEST_F(MailboxTest, WithoutTheNumberNothingGetsIn) {
  const auto mailbox = open(5, owner_), stranger = open(6, other_), sender = open(5, other_);
  const size_t before = open_files();
  for (int i = 0; i < 1000; ++i) {
    const int fds[] = {STDIN_FILENO, STDOUT_FILENO};
    ASSERT_EQ(stranger->send(mailbox->name(), {}, fds), 0)
        << "the kernel drops it: nothing is full";
    (void)progress_.pass();
  }
  EXPECT_LE(open_files(), before);
  EXPECT_EQ(owner_->letters, 0);
  ASSERT_EQ(sender->send(mailbox->name(), {}, {}), 0);
  EXPECT_TRUE(serve_until([&] { return owner_->letters == 1; }));
  stranger->close();
  sender->close();
}

TEST_F(MailboxTest, OneLetterIsTakenAndWhatElseCameIsClosed) {
  const size_t before = open_files();
  {
    const auto mailbox = open(5, owner_), sender = open(5, other_);
    const int fds[] = {STDIN_FILENO, STDOUT_FILENO};
    for (int i = 0; i < 8; ++i) ASSERT_EQ(sender->send(mailbox->name(), {}, fds), 0);
    EXPECT_TRUE(
        serve_until([&] { return sender->send(mailbox->name(), {}, fds) == ECONNREFUSED; }));
    EXPECT_EQ(owner_->letters, 1);
    EXPECT_EQ(owner_->fds, 2u);
    sender->close();
  }
  EXPECT_TRUE(eventually([&] { return open_files() == before; }));
}

TEST_F(MailboxTest, AClosedMailboxRefuses) {
  const auto mailbox = open(5, owner_), sender = open(5, other_);
  mailbox->close();
  EXPECT_TRUE(eventually([&] { return sender->send(mailbox->name(), {}, {}) == ECONNREFUSED; }));
  EXPECT_EQ(owner_->letters, 0);
  sender->close();
}

TEST_F(MailboxTest, AnOwnerThatHasGoneGetsNothing) {
  const auto mailbox = open(5, owner_), sender = open(5, other_);
  owner_.reset();
  ASSERT_EQ(sender->send(mailbox->name(), {}, {}), 0);
  EXPECT_TRUE(serve_until([&] { return sender->send(mailbox->name(), {}, {}) == ECONNREFUSED; }));
  sender->close();
}

// However many come, the application's table has a few of them only.
TEST_F(MailboxTest, ManyDescriptorsBehindOneThatWaitsFillNoTable) {
  LingeringSocket socket;
  const auto mailbox = open(5, owner_);
  const int sender = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  constexpr size_t kMany = 200;
  union {
    cmsghdr header;
    char bytes[CMSG_SPACE(kMany * sizeof(int))];
  } control{};
  control.header = {CMSG_LEN(kMany * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
  std::vector<int> fds(kMany, STDIN_FILENO);
  fds[0] = socket.fd();
  std::memcpy(CMSG_DATA(&control.header), fds.data(), kMany * sizeof(int));
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  const int length = std::snprintf(to.sun_path + 1, sizeof to.sun_path - 1, "uwarp-%012llx",
                                   static_cast<unsigned long long>(mailbox->name()));
  Letter letter{.number = 5};
  iovec body = {&letter, sizeof letter};
  msghdr message{&to,
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length),
                 &body,
                 1,
                 control.bytes,
                 sizeof control.bytes,
                 0};
  const size_t before = open_files();
  ASSERT_EQ(sendmsg(sender, &message, 0), ssize_t{sizeof letter});
  socket.forget();
  ASSERT_TRUE(serve_until([&] { return owner_->letters == 1; }));
  EXPECT_LE(open_files(), before + 4);
  EXPECT_NE(owner_->fds, 3u) << "it is no letter with memory and bells";
  socket.end();
  close(sender);
}

// Each of them holds one thread for errands; the letters of others come nevertheless.
TEST_F(MailboxTest, DescriptorsThatWaitWhenTheyAreClosedHoldUpNoOther) {
  constexpr size_t kHeld = Errands::kMostThreads - 1;
  std::vector<std::unique_ptr<LingeringSocket>> sockets;
  std::vector<std::shared_ptr<Mailbox>> mailboxes;
  for (size_t i = 0; i != kHeld; ++i) {
    sockets.push_back(std::make_unique<LingeringSocket>());
    const auto mailbox = open(5, owner_), sender = open(5, other_);
    const int fds[] = {sockets.back()->fd()};
    ASSERT_EQ(sender->send(mailbox->name(), {}, fds), 0);
    sockets.back()->forget();
    sender->close();
    mailboxes.push_back(mailbox);
  }
  ASSERT_TRUE(serve_until([&] { return owner_->letters == static_cast<int>(kHeld); }));
  for (int i = 1; i <= 100; ++i) {
    const auto mailbox = open(5, other_), sender = open(5, owner_);
    ASSERT_EQ(sender->send(mailbox->name(), {}, {}), 0);
    ASSERT_TRUE(serve_until([&] { return other_->letters == i; })) << i;
    sender->close();
  }
  for (const auto& socket : sockets) socket->end();
  EXPECT_TRUE(eventually([&] { return errands_.waiting() == 0; }));
}

}  // namespace
}  // namespace uwarp
