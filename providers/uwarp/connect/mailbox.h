// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Where the process at the other end of a connection, if it is on this host, sends a letter about
// shared memory: a Unix datagram socket with a random name in the abstract namespace, which reaches
// as far as the network namespace and leaves nothing behind. A filter in the kernel keeps out
// whatever does not begin with the connection's number, which only the peer has been told: others
// who see the name get nothing in, and cost nothing. Who has sent the letter the kernel says
// (SCM_CREDENTIALS). docs/wire.md, "Shared memory".
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "carrier/peer_memory.h"
#include "os/engine_fds.h"
#include "os/errands.h"
#include "progress/progress.h"

namespace uwarp {

/// In the byte order of the host.
struct Letter {
  uint64_t number = 0;         // of the connection
  uint64_t reply_to = 0;       // the name of the sender's mailbox
  PeerMemory::Place secret{};  // of the sender
};
static_assert(sizeof(Letter) == 32);

/// One that has come.
struct Mail {
  Letter letter;
  pid_t pid = 0;  // of the sender in our pid namespace; 0: it is not there
  uid_t uid = ~uid_t{0};
  std::vector<ForeignFd> fds;
};

class Mailbox final : public Source, public Errand {
 public:
  /// Gets the letter.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// By a thread that may wait, no lock held. May throw std::bad_alloc.
    virtual void mail_arrived(Mailbox& mailbox, Mail& mail) = 0;
  };
  struct Shared {
    Progress& progress;
    Errands& errands;
  };

  /// `number`: CarrierWrite::kValueMask. Errors: EMFILE, ENOMEM, EACCES where a sandbox forbids
  /// it...
  static Result<std::shared_ptr<Mailbox>> open(const Shared& shared, uint64_t number,
                                               std::weak_ptr<Owner> owner);
  Mailbox(const Shared& shared, uint64_t number, std::weak_ptr<Owner> owner)
      : shared_(shared), number_(number), owner_(std::move(owner)) {}
  ~Mailbox() override;

  uint64_t name() const { return name_; }
  uint64_t number() const { return number_; }
  /// Sends from here to the mailbox `name`. Waits for nothing. 0 or an errno: ECONNREFUSED, there
  /// is none in our network namespace.
  int send(uint64_t name, const PeerMemory::Place& secret, std::span<const int> fds);
  /// No letter is awaited any more.
  void close();

  /// Source: a letter is there.
  bool ready(uint32_t events) override;
  /// Errand: takes it, and closes the mailbox.
  void run() noexcept override;

 private:
  int bind();
  static bool receive(int fd, Mail& mail);
  void begin_errand();

  const Shared shared_;
  const uint64_t number_;
  const std::weak_ptr<Owner> owner_;
  uint64_t name_ = 0;
  Mutex mutex_;  // of what follows: an errand may be quicker than open()
  EngineFd fd_ GUARDED_BY(mutex_);
  Progress::Registration registration_ GUARDED_BY(mutex_) = 0;
  std::atomic<bool> closed_{false};
  std::atomic<bool> errand_begun_{false};
};

}  // namespace uwarp
