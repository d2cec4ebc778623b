// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Each Read and Write of a table by TCP, by the ring with one and with two copies, and without a
// thread of the target: status, bytes and events are the same. Requester and target are processes
// of their own, as a way is chosen by the environment, and as memory that is gone may end a
// process.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "verbs/peer_process.h"
#include "verbs/verbs_fixture.h"

namespace same_status {
namespace {

// --- The table

/// What becomes of memory after it has been registered. The first half of it stays.
enum class Fate : uint8_t {
  kStays,
  kUnmapped,
  kReadOnly,
  kNoAccess,
  kFileCut,        // it maps a file, of which the second half is cut off
  kSharedWithFork  // a child has it too, and must keep the bytes that it was given
};
/// The last two have never been touched.
enum class Pages : uint8_t { kUsual, kHuge, kFile, kReadOnlyFile, kHole, kUntouched };
constexpr bool touched(Pages pages) { return pages != Pages::kHole && pages != Pages::kUntouched; }
enum class Mistake : uint8_t { kNone, kKey, kOlderKey, kGone, kDomain, kOurKey, kOurDomain };

constexpr size_t kBytes = 64 << 10, kHalf = kBytes / 2, kHugeBytes = 2 << 20;
constexpr uint64_t kFirst = 16 << 10;  // offset of a request
constexpr uint32_t kSmall = 64, kLarge = 20 << 10, kIntoHalf = 40 << 10;
constexpr unsigned kNothing = 0, kRead = IBV_ACCESS_REMOTE_READ,
                   kWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE,
                   kBoth = kRead | kWrite;

struct Place {
  Pages pages = Pages::kUsual;
  Fate fate = Fate::kStays;
  unsigned access = kBoth;
};
struct Case {
  const char* name;
  uint32_t length = kSmall;
  Place there = {}, here = {};
  Mistake mistake = Mistake::kNone;
  uint64_t offset = kFirst;  // in the target
  bool works = true;
  bool by_write = true, by_read = true;

  /// Memory that is gone: the transfer fails, or the process dies that touches it.
  bool memory_is_gone() const {
    return !works && mistake == Mistake::kNone &&
           (there.fate != Fate::kStays || here.fate != Fate::kStays);
  }
};

constexpr Place with(Fate fate) { return {Pages::kUsual, fate, kBoth}; }
constexpr Place on(Pages pages, unsigned access = kBoth) { return {pages, Fate::kStays, access}; }
constexpr Place cut_file() { return {Pages::kFile, Fate::kFileCut, kBoth}; }
constexpr Place granting(unsigned access) { return {Pages::kUsual, Fate::kStays, access}; }
Case mistaken(const char* name, Mistake mistake, uint32_t length = kSmall) {
  return {.name = name, .length = length, .mistake = mistake, .works = false};
}
Case at_offset(const char* name, uint64_t offset, uint32_t length, bool works) {
  return {.name = name, .length = length, .offset = offset, .works = works};
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {.name = "small"},
      {.name = "large", .length = kLarge},
      at_offset("the first byte", 0, 1, true),
      at_offset("the last byte", kBytes - 1, 1, true),
      at_offset("all of it", 0, kBytes, true),
      {.name = "huge pages there", .length = kLarge, .there = on(Pages::kHuge)},
      {.name = "huge pages here", .length = kLarge, .here = on(Pages::kHuge)},
      {.name = "a file there", .length = kLarge, .there = on(Pages::kFile)},
      {.name = "a file here", .length = kLarge, .here = on(Pages::kFile)},
      {.name = "a hole of a file there", .length = kLarge, .there = on(Pages::kHole)},
      {.name = "a hole of a file here", .length = kLarge, .here = on(Pages::kHole)},
      {.name = "untouched there", .length = kLarge, .there = on(Pages::kUntouched)},
      {.name = "untouched here", .length = kLarge, .here = on(Pages::kUntouched)},
      {.name = "a file there that is not written",
       .length = kLarge,
       .there = on(Pages::kReadOnlyFile, kRead),
       .by_write = false},
      {.name = "a file here that is not written",
       .length = kLarge,
       .here = on(Pages::kReadOnlyFile, kNothing),
       .by_read = false},
      {.name = "a child has it, there", .there = with(Fate::kSharedWithFork)},
      {.name = "a child has it, there, large",
       .length = kIntoHalf,
       .there = with(Fate::kSharedWithFork)},
      {.name = "a child has it, here", .here = with(Fate::kSharedWithFork)},
      {.name = "a child has it, here, large",
       .length = kIntoHalf,
       .here = with(Fate::kSharedWithFork)},
      {.name = "read-only there, which is read",
       .length = kIntoHalf,
       .there = with(Fate::kReadOnly),
       .by_write = false},
      {.name = "read-only here, which is sent",
       .length = kIntoHalf,
       .here = with(Fate::kReadOnly),
       .by_read = false},
      mistaken("a key that never was", Mistake::kKey),
      mistaken("a key that never was, large", Mistake::kKey, kLarge),
      mistaken("an older key", Mistake::kOlderKey),
      mistaken("a region that is gone", Mistake::kGone),
      mistaken("a region that is gone, large", Mistake::kGone, kLarge),
      mistaken("another domain", Mistake::kDomain),
      mistaken("our key never was", Mistake::kOurKey),
      mistaken("our key never was, large", Mistake::kOurKey, kLarge),
      mistaken("our key is of another domain", Mistake::kOurDomain),
      {.name = "no right to write", .there = granting(kRead), .works = false, .by_read = false},
      {.name = "no right to write, large",
       .length = kLarge,
       .there = granting(kRead),
       .works = false,
       .by_read = false},
      {.name = "no right to read", .there = granting(kWrite), .works = false, .by_write = false},
      {.name = "no right at all", .there = granting(IBV_ACCESS_LOCAL_WRITE), .works = false},
      {.name = "our memory is not to be written",
       .here = granting(kNothing),
       .works = false,
       .by_write = false},
      at_offset("before it", ~uint64_t{0}, kSmall, false),
      at_offset("one byte over its end", kBytes - kSmall + 1, kSmall, false),
      at_offset("large and over its end", kBytes - kLarge + 1, kLarge, false),
      at_offset("behind it", kBytes + 4096, kSmall, false),
      {.name = "unmapped there",
       .length = kIntoHalf,
       .there = with(Fate::kUnmapped),
       .works = false},
      {.name = "unmapped here", .length = kIntoHalf, .here = with(Fate::kUnmapped), .works = false},
      {.name = "no access there",
       .length = kIntoHalf,
       .there = with(Fate::kNoAccess),
       .works = false},
      {.name = "no access here",
       .length = kIntoHalf,
       .here = with(Fate::kNoAccess),
       .works = false},
      {.name = "read-only there, which is written",
       .length = kIntoHalf,
       .there = with(Fate::kReadOnly),
       .works = false,
       .by_read = false},
      {.name = "read-only here, where an answer goes",
       .length = kIntoHalf,
       .here = with(Fate::kReadOnly),
       .works = false,
       .by_write = false},
      {.name = "a cut file there", .length = kIntoHalf, .there = cut_file(), .works = false},
      {.name = "a cut file here", .length = kIntoHalf, .here = cut_file(), .works = false},
  };
  return all;
}

// --- Memory

constexpr uint8_t kOfTarget = 0x11, kOfRequester = 0x22;

/// Memory of a case, filled with `value`; null where the system has no such pages.
class Memory {
 public:
  Memory(const Place& place, ibv_pd* pd, uint8_t value)
      : place_(place), value_(touched(place.pages) ? value : 0) {
    const bool file = place.pages == Pages::kFile || place.pages == Pages::kReadOnlyFile ||
                      place.pages == Pages::kHole;
    if (file) fd_ = memfd_create("same-status", MFD_CLOEXEC);
    if (file && ftruncate(fd_, static_cast<off_t>(kBytes)) != 0) return;
    const int huge = place.pages == Pages::kHuge ? MAP_HUGETLB | MAP_POPULATE : 0;
    void* const mapped =
        mmap(nullptr, size(), PROT_READ | PROT_WRITE,
             file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | huge, file ? fd_ : -1, 0);
    if (mapped == MAP_FAILED) return;
    at_ = static_cast<uint8_t*>(mapped);
    if (touched(place.pages)) std::memset(at_, value, kBytes);
    if (place.pages == Pages::kReadOnlyFile) mprotect(at_, size(), PROT_READ);
    mr_.reset(ibv_reg_mr(pd, at_, kBytes, static_cast<int>(place.access)));
    EXPECT_NE(mr_, nullptr);
  }
  ~Memory() {
    if (child_ > 0) (void)child_keeps_its_bytes();
    mr_.reset();
    if (at_ != nullptr) munmap(at_, size());
    if (fd_ >= 0) close(fd_);
  }
  explicit operator bool() const { return at_ != nullptr; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(at_); }
  ibv_mr* mr() const { return mr_.get(); }
  void deregister() { mr_.reset(); }

  /// `changed`: what its owner writes to it afterwards.
  void suffer(uint8_t changed) {
    switch (place_.fate) {
      case Fate::kStays:
        return;
      case Fate::kUnmapped:
        // Nothing else is to be mapped there.
        (void)!mmap(at_ + kHalf, kHalf, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        munmap(at_ + kHalf, kHalf);
        return;
      case Fate::kReadOnly:
        mprotect(at_ + kHalf, kHalf, PROT_READ);
        return;
      case Fate::kNoAccess:
        mprotect(at_ + kHalf, kHalf, PROT_NONE);
        return;
      case Fate::kFileCut:
        EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(kHalf)), 0);
        return;
      case Fate::kSharedWithFork:
        make_child();
        std::memset(at_, changed, kBytes);
        value_ = changed;
        return;
    }
  }
  /// What is in [offset, offset + length), as far as it can be looked at, and that the rest is as
  /// it was.
  std::string look(uint64_t offset, uint32_t length, uint8_t sent) {
    const bool whole = place_.fate == Fate::kStays || place_.fate == Fate::kReadOnly ||
                       place_.fate == Fate::kSharedWithFork;
    const size_t end = whole ? kBytes : kHalf;
    size_t came = 0, kept = 0, wrong = 0, forbidden = 0;
    for (size_t i = 0; i != end; ++i) {
      const bool inside = i >= offset && i - offset < length;
      if (!inside)
        wrong += at_[i] != value_;
      else if (at_[i] == sent)
        ++came, forbidden += place_.fate == Fate::kReadOnly && i >= kHalf;
      else
        at_[i] == value_ ? ++kept : ++wrong;
    }
    std::string said = came == 0 ? "none" : kept == 0 ? "all" : "some";
    if (wrong != 0) said += ", and others are wrong";
    if (forbidden != 0) said += ", also where none may be written";
    if (!child_keeps_its_bytes()) said += ", also in the child";
    return said;
  }
  uint8_t value() const { return value_; }

 private:
  size_t size() const { return place_.pages == Pages::kHuge ? kHugeBytes : kBytes; }
  void make_child() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      close(ends[1]);
      char byte;
      (void)!read(ends[0], &byte, 1);
      const bool kept =
          std::all_of(at_, at_ + kBytes, [this](uint8_t each) { return each == value_; });
      _exit(kept ? 0 : 1);
    }
    close(ends[0]);
    child_waits_ = ends[1];
  }
  bool child_keeps_its_bytes() {
    if (child_ <= 0) return true;
    close(child_waits_);
    int status = -1;
    (void)waitpid(child_, &status, 0);
    child_ = 0;
    return status == 0;
  }

  const Place place_;
  uint8_t value_;
  uint8_t* at_ = nullptr;
  int fd_ = -1;
  Mr mr_;
  pid_t child_ = 0;
  int child_waits_ = -1;
};

// --- Between the processes

struct Question {
  enum class What : uint32_t { kBegin, kConnect, kSuffer, kLook, kEnd } what = What::kBegin;
  uint32_t index = 0;  // of the case
  bool read = false;
  bool fails = false;
  uint8_t sent = 0;  // what each byte of the request is
  Address requester = {};
};
struct Answer {
  Address end = {};
  uint64_t at = 0;  // 0: no such memory here
  uint32_t key = 0;
  uint32_t other_key = 0;  // of another domain
  char said[200] = {};
};

bool say(int fd, const void* from, size_t size) {
  return send(fd, from, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}
bool hear(int fd, void* to, size_t size) {
  return recv(fd, to, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

/// Events of a process, once its queue pair has failed if it does.
std::string events(ibv_context* context, End& end, bool fails) {
  std::string all;
  if (fails) {
    if (!wait_until([&] { return state_of(end.qp.get()) == IBV_QPS_ERR; })) all += " no failure";
    // Its failure is told by the time that this is flushed.
    EXPECT_EQ(end.post_receive(99), 0);
    while (true) {
      const auto wc = next_completion(end.cq.get());
      if (!wc || wc->wr_id == 99) break;
    }
  }
  while (readable(context->async_fd, std::chrono::milliseconds(0))) {
    ibv_async_event event = {};
    if (ibv_get_async_event(context, &event) != 0) break;
    if (event.event_type != IBV_EVENT_COMM_EST)
      all += std::string(" ") + ibv_event_type_str(event.event_type);
    ibv_ack_async_event(&event);
  }
  return all.empty() ? " none" : all;
}

/// Memory that is gone ends the process, and no report of a sanitizer is wanted.
void die_quietly() {
  signal(SIGSEGV, SIG_DFL);
  signal(SIGBUS, SIG_DFL);
  const rlimit none = {};
  setrlimit(RLIMIT_CORE, &none);
}

int play_target(int fd) {
  die_quietly();
  const Context context = open_device();
  if (context == nullptr) return 2;
  std::unique_ptr<End> end, stranger;
  std::unique_ptr<Memory> memory;
  for (Question question; hear(fd, &question, sizeof question);) {
    const Case& one = cases()[question.index];
    Answer answer;
    switch (question.what) {
      case Question::What::kBegin:
        end = std::make_unique<End>(context.get(), kBytes);
        stranger = std::make_unique<End>(context.get(), kBytes);
        memory = std::make_unique<Memory>(one.there, end->pd.get(), kOfTarget);
        answer.end = end->address();
        answer.other_key = stranger->mr->rkey;
        answer.at = memory->address();
        if (*memory) answer.key = memory->mr()->rkey;
        break;
      case Question::What::kConnect:
        end->connect(question.requester);
        break;
      case Question::What::kSuffer:
        memory->suffer(kOfTarget + 1);
        if (one.mistake == Mistake::kGone) memory->deregister();
        break;
      case Question::What::kLook: {
        const std::string happened = events(context.get(), *end, question.fails);
        const std::string bytes =
            memory->look(one.offset, question.read ? 0 : one.length, question.sent);
        std::snprintf(answer.said, sizeof answer.said, "%s\t%s", bytes.c_str(), happened.c_str());
        break;
      }
      case Question::What::kEnd:
        memory.reset();
        stranger.reset();
        end.reset();
        break;
    }
    if (!say(fd, &answer, sizeof answer)) return 3;
  }
  return testing::Test::HasFailure() ? 5 : 0;
}

// --- The requester

/// How requests are to go; the processes of a way have these settings.
struct Way {
  const char* name;
  const char* shared_memory;
  const char* copies;
  bool traced;  // requests go by a thread of the target then
};
constexpr Way kWays[] = {{"tcp", "0", "measured", false},
                         {"ring, two copies", "1", "two", false},
                         {"ring, one copy", "1", "one", true},
                         {"direct", "1", "one", false}};
constexpr size_t kTcp = 0, kOneCopy = 2, kDirect = 3;

/// This program again. Its end of a pair of sockets is kControlFd.
class Program {
 public:
  Program(const std::vector<std::string>& arguments, const std::vector<std::string>& settings)
      : pid_(start_again(arguments, settings, fd_)) {}
  ~Program() { (void)end(); }
  int fd() const { return fd_; }
  /// Its status as waitpid() has it.
  int end() {
    if (pid_ <= 0) return status_;
    close(fd_);
    waitpid(pid_, &status_, 0);
    pid_ = 0;
    return status_;
  }

 private:
  int fd_ = -1;
  pid_t pid_;
  int status_ = -1;
};

class Requester {
 public:
  Requester(ibv_context* context, size_t way) : context_(context), way_(way) {}

  /// Status, bytes and events, separated by tabs; in front of them whether no thread of the target
  /// was needed.
  std::string run(uint32_t index, bool read) {
    const Case& one = cases()[index];
    if (target_ == nullptr)
      target_ = std::make_unique<Program>(std::vector<std::string>{"--role=same-status-target"},
                                          std::vector<std::string>{});
    End end(context_, kBytes), stranger(context_, kBytes);
    Memory memory(one.here, end.pd.get(), kOfRequester);
    Question question;
    question.index = index;
    question.read = read;
    // Where memory is gone the target may wait for the rest of a frame for seconds.
    question.fails = !one.works && !one.memory_is_gone();
    ask(question, Question::What::kBegin);
    const Answer there = answer_;
    const bool exists = memory && there.at != 0;
    if (exists) {
      question.requester = end.address();
      ask(question, Question::What::kConnect);
      // It is as long as that until a request fails whose target has gone.
      end.connect(there.end, one.memory_is_gone() ? Retries{.timeout = 13, .count = 1} : Retries{});
      approach(end, there.end);
      ask(question, Question::What::kSuffer);
      memory.suffer(kOfRequester + 1);
    }
    std::string said = "0\tno such pages";
    if (exists) said = request(one, read, end, stranger, memory, there, question);
    if (target_ != nullptr) ask(question, Question::What::kEnd);
    return said;
  }

 private:
  void ask(Question& question, Question::What what) {
    question.what = what;
    if (target_ != nullptr && say(target_->fd(), &question, sizeof question) &&
        hear(target_->fd(), &answer_, sizeof answer_))
      return;
    target_.reset();
    answer_ = {};
    std::strcpy(answer_.said, "it has died\tit has died");
  }

  bool roce() const { return context_->device->node_type == IBV_NODE_CA; }
  uint64_t direct() const { return hw_counter(context_, "direct_requests"); }
  uint64_t not_direct() const {
    return hw_counter(context_, "direct_unreachable") + hw_counter(context_, "direct_refused");
  }
  /// Until requests go the way that is asked for.
  void approach(End& end, const Address& target) const {
    int left = way_ == kTcp ? 1 : 4;
    EXPECT_TRUE(wait_until([&] {
      for (int i = 0; i < 32; ++i) EXPECT_EQ(end.post_rdma(IBV_WR_RDMA_WRITE, 1, target), 0);
      for (int i = 0; i < 32; ++i)
        if (!next_completion(end.cq.get())) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const uint64_t before = direct();
      EXPECT_EQ(end.post_rdma(IBV_WR_RDMA_READ, 1, target), 0);
      if (!next_completion(end.cq.get())) return false;
      if (way_ == kDirect) return direct() != before;
      return (way_ == kTcp || rings_are_mapped()) && --left == 0;
    }));
  }

  std::string request(const Case& one, bool read, End& end, End& stranger, Memory& memory,
                      const Answer& there, Question& question) {
    const uint64_t here = one.length == kBytes ? 0 : kFirst;
    ibv_sge sge = {memory.address() + here, one.length, memory.mr()->lkey};
    uint32_t key = there.key;
    uint64_t at = there.at + one.offset;
    switch (one.mistake) {
      case Mistake::kNone:
      case Mistake::kGone:
        break;
      case Mistake::kKey:
        key ^= 0x5500;
        break;
      case Mistake::kOlderKey:
        key ^= 1;
        break;
      case Mistake::kDomain:
        key = there.other_key;
        at = there.end.memory;
        break;
      case Mistake::kOurKey:
        sge.lkey ^= 0x5500;
        break;
      case Mistake::kOurDomain:
        sge = stranger.sge(0, one.length);
        break;
    }
    const uint64_t before = direct(), not_before = not_direct();
    EXPECT_EQ(end.post_rdma(read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 7, sge, at, key), 0);
    const auto wc = next_completion(end.cq.get());
    const bool went_directly = direct() != before;
    // It is counted why it did not, where it might have.
    const bool counted = not_direct() != not_before;
    const bool might_have = one.length != 0 && way_ != kTcp && !kWays[way_].traced;
    EXPECT_EQ(counted, might_have && !went_directly);
    std::string status = wc ? ibv_wc_status_str(wc->status) : "none";
    const bool ours = one.mistake == Mistake::kOurKey || one.mistake == Mistake::kOurDomain;
    // A Write that nothing acknowledges has completed, or has not, when its target refuses it.
    if (!roce() && !read && !one.works && !ours && wc &&
        (wc->status == IBV_WC_SUCCESS || wc->status == IBV_WC_REM_ACCESS_ERR))
      status = "it is not said";
    // A Write that nothing acknowledges is there once a Read behind it has its answer.
    if (one.works) {
      EXPECT_EQ(end.post_rdma(IBV_WR_RDMA_READ, 8, there.end, kBytes - 8, 8), 0);
      EXPECT_TRUE(next_completion(end.cq.get()));
    }
    // What must fail and does not is told at once.
    const bool fails = !one.works && status != "success";
    question.fails = question.fails && fails;
    const std::string happened = events(context_, end, fails);
    question.sent = memory.value();
    ask(question, Question::What::kLook);
    uint8_t of_target = touched(one.there.pages) ? kOfTarget : 0;
    if (one.there.fate == Fate::kSharedWithFork) of_target = kOfTarget + 1;
    const std::string bytes = memory.look(here, read ? one.length : 0, of_target);
    const std::string said = answer_.said;
    const size_t cut = said.find('\t');
    return (went_directly ? "1\t" : "0\t") + status + '\t' + "here " + bytes + ", there " +
           said.substr(0, cut) + '\t' + "here" + happened + ", there " + said.substr(cut + 1);
  }

  ibv_context* const context_;
  const size_t way_;
  std::unique_ptr<Program> target_;
  Answer answer_;
};

/// Runs are numbered: two of each case.
bool exists(size_t run) {
  const Case& one = cases()[run / 2];
  return run % 2 != 0 ? one.by_read : one.by_write;
}
size_t all_runs() { return 2 * cases().size(); }

int play_requester(int fd, size_t way, size_t first) {
  die_quietly();
  const Context context = open_device();
  if (context == nullptr) return 2;
  Requester requester(context.get(), way);
  for (size_t run = first; run != all_runs(); ++run) {
    if (!exists(run)) continue;
    const std::string name = std::to_string(run) + '\t';
    const std::string begun = name + "begun\n";
    if (!say(fd, begun.data(), begun.size())) return 3;
    const std::string told =
        name + requester.run(static_cast<uint32_t>(run / 2), run % 2 != 0) + '\n';
    if (!say(fd, told.data(), told.size())) return 3;
  }
  return testing::Test::HasFailure() ? 5 : 0;
}

// --- The test

struct Told {
  bool direct = false;
  std::string status, bytes, events;
};

/// The result of each run. Where a run kills its requester, another one does the runs behind it.
std::map<size_t, Told> results_of(size_t way) {
  std::map<size_t, Told> all;
  const Way& settings = kWays[way];
  std::vector<std::string> environment = {std::string("UWARP_SHM=") + settings.shared_memory,
                                          std::string("UWARP_SHM_COPIES=") + settings.copies};
  char folder[] = "/tmp/same-status-XXXXXX";
  EXPECT_NE(mkdtemp(folder), nullptr);
  if (settings.traced) environment.push_back(std::string("UWARP_TRACE=") + folder + "/%p");
  for (size_t next = 0; next < all_runs();) {
    Program requester({"--role=same-status-requester", std::to_string(way), std::to_string(next)},
                      environment);
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = recv(requester.fd(), buffer, sizeof buffer, 0)) > 0;)
      text.append(buffer, static_cast<size_t>(got));
    const int status = requester.end();
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string run, direct;
      Told told;
      std::getline(fields, run, '\t');
      std::getline(fields, direct, '\t');
      std::getline(fields, told.status, '\t');
      std::getline(fields, told.bytes, '\t');
      std::getline(fields, told.events, '\t');
      told.direct = direct == "1";
      if (direct == "begun") told.status = "the requester has died";
      next = std::stoul(run) + 1;
      all[next - 1] = told;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
      ADD_FAILURE() << settings.name << ": exit status " << WEXITSTATUS(status);
    if (WIFEXITED(status)) break;
    if (text.empty()) {
      ADD_FAILURE() << settings.name << ": nothing is told, signal " << WTERMSIG(status);
      break;
    }
  }
  std::filesystem::remove_all(folder);
  return all;
}

class SameStatus : public VerbsTest {};

TEST_F(SameStatus, OfEachRequestInEachWay) {
  if (!shared_memory_is_on()) GTEST_SKIP() << "there is one way";
  std::vector<std::map<size_t, Told>> ways(std::size(kWays));
  std::vector<std::thread> threads;
  for (size_t way = 0; way != ways.size(); ++way)
    threads.emplace_back([&ways, way] { ways[way] = results_of(way); });
  for (std::thread& each : threads) each.join();
  for (size_t run = 0; run != all_runs(); ++run) {
    if (!exists(run)) continue;
    const Case& one = cases()[run / 2];
    SCOPED_TRACE(std::string(run % 2 != 0 ? "Read, " : "Write, ") + one.name);
    for (size_t way = 0; way != ways.size(); ++way) {
      SCOPED_TRACE(kWays[way].name);
      const Told& told = ways[way][run];
      if (getenv("UWARP_TEST_SHOW") != nullptr)
        std::printf("%-5s %-36s %-16s %d | %s | %s | %s\n", run % 2 != 0 ? "Read" : "Write",
                    one.name, kWays[way].name, told.direct, told.status.c_str(), told.bytes.c_str(),
                    told.events.c_str());
      EXPECT_NE(told.status, "") << "nothing is told";
      if (told.status == "no such pages") continue;
      EXPECT_EQ(told.direct, way == kDirect && one.works);
      EXPECT_EQ(told.bytes.find(", also"), std::string::npos) << told.bytes;
      EXPECT_EQ(told.bytes.find("wrong"), std::string::npos) << told.bytes;
      if (one.memory_is_gone()) {
        EXPECT_NE(told.status, "success");
        continue;
      }
      EXPECT_EQ(told.status == "success", one.works) << told.status;
      EXPECT_EQ(told.status, ways[kTcp][run].status);
      EXPECT_EQ(told.bytes, ways[kTcp][run].bytes);
      EXPECT_EQ(told.events, ways[kTcp][run].events);
    }
    if (one.memory_is_gone()) {
      EXPECT_EQ(ways[kDirect][run].status, ways[kOneCopy][run].status);
    }
  }
}

}  // namespace
}  // namespace same_status

int play_same_status(const std::vector<std::string>& arguments) {
  if (arguments.size() == 1 && arguments[0] == "same-status-target")
    return same_status::play_target(kControlFd);
  if (arguments.size() == 3 && arguments[0] == "same-status-requester")
    return same_status::play_requester(kControlFd, std::stoul(arguments[1]),
                                       std::stoul(arguments[2]));
  return -1;
}
