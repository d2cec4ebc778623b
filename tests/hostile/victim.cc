// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// victim serve ADDRESS PORT BOOK    answers each message of each connection
// victim call ADDRESS PORT BOOK     one connection that lasts, and fresh ones all the time
//
// The two ends of honest work beside an attack. BOOK is a file that the test maps too: what was
// done, and what was found to be wrong. Each message is checked byte by byte, and so is memory that
// no peer may reach. It goes on until it is killed; an error of its own ends it with status 1 and a
// line.

#include <fcntl.h>
#include <rdma/rdma_verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kMessageBytes = 32 * 1024;
constexpr size_t kCanaryBytes = 256 * 1024;
constexpr int kFreshRounds = 200;  // busy for long enough to leave TCP for shared memory
constexpr uint8_t kCanary = 0xC5;

/// Eight-byte words, in this order, at the start of BOOK.
struct Book {
  std::atomic<uint64_t> rounds;   // of the connection that lasts
  std::atomic<uint64_t> fresh;    // connections that were made, used and ended
  std::atomic<uint64_t> damaged;  // bytes that were not what they must be
};
Book* book = nullptr;

[[noreturn]] void die(const char* what) {
  std::printf("FAILED %s: %s\n", what, std::strerror(errno));
  std::fflush(stdout);
  std::_Exit(1);
}
void need(bool condition, const char* what) {
  if (!condition) die(what);
}

uint8_t byte_of(uint64_t round, size_t at) { return static_cast<uint8_t>(round * 31 + at); }

void check(uint64_t wrong) {
  if (wrong != 0) book->damaged += wrong;
}

/// Memory around a registered region, which is not registered itself.
class Guarded {
 public:
  Guarded() : bytes_(2 * kCanaryBytes + kMessageBytes, kCanary) {}
  uint8_t* message() { return bytes_.data() + kCanaryBytes; }
  void check_canaries() const {
    uint64_t wrong = 0;
    for (size_t i = 0; i < kCanaryBytes; ++i) {
      wrong += bytes_[i] != kCanary;
      wrong += bytes_[bytes_.size() - 1 - i] != kCanary;
    }
    check(wrong);
  }

 private:
  std::vector<uint8_t> bytes_;
};

rdma_addrinfo* resolve(const char* address, const char* port, bool passive) {
  rdma_addrinfo hints{};
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_flags = passive ? RAI_PASSIVE : 0;
  rdma_addrinfo* found = nullptr;
  need(rdma_getaddrinfo(address, port, &hints, &found) == 0, "rdma_getaddrinfo");
  return found;
}

ibv_qp_init_attr attributes() {
  ibv_qp_init_attr attr{};
  attr.cap = {4, 4, 1, 1, 0};
  attr.sq_sig_all = 1;
  attr.qp_type = IBV_QPT_RC;
  return attr;
}

/// One end of a connection. Both directions use memory of their own.
class End {
 public:
  explicit End(rdma_cm_id* id) : id_(id) {
    in_mr_ = rdma_reg_msgs(id, in_.message(), kMessageBytes);
    out_mr_ = rdma_reg_msgs(id, out_.message(), kMessageBytes);
    need(in_mr_ != nullptr && out_mr_ != nullptr, "rdma_reg_msgs");
    post_receive();
  }
  ~End() {
    in_.check_canaries();
    out_.check_canaries();
    // librdmacm waits for the event of an end, which comes only if there was a beginning.
    if (connected_) rdma_disconnect(id_);
    rdma_dereg_mr(in_mr_);
    rdma_dereg_mr(out_mr_);
    rdma_destroy_ep(id_);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  /// False where the peer has gone meanwhile.
  bool accept() { return connected_ = rdma_accept(id_, nullptr) == 0; }
  bool connect() { return connected_ = rdma_connect(id_, nullptr) == 0; }

  /// This and receive(): false at the end of the connection, however it came.
  bool send(uint64_t round) {
    for (size_t i = 0; i < kMessageBytes; ++i) out_.message()[i] = byte_of(round, i);
    need(rdma_post_send(id_, nullptr, out_.message(), kMessageBytes, out_mr_, 0) == 0,
         "rdma_post_send");
    ibv_wc wc{};
    need(rdma_get_send_comp(id_, &wc) == 1, "rdma_get_send_comp");
    return wc.status == IBV_WC_SUCCESS;
  }
  bool receive(uint64_t round) {
    ibv_wc wc{};
    if (rdma_get_recv_comp(id_, &wc) != 1) die("rdma_get_recv_comp");
    if (wc.status != IBV_WC_SUCCESS) return false;
    uint64_t wrong = wc.byte_len != kMessageBytes;
    for (size_t i = 0; i < kMessageBytes; ++i) wrong += in_.message()[i] != byte_of(round, i);
    check(wrong);
    std::memset(in_.message(), 0, kMessageBytes);
    post_receive();
    return true;
  }

 private:
  void post_receive() {
    need(rdma_post_recv(id_, nullptr, in_.message(), kMessageBytes, in_mr_) == 0, "rdma_post_recv");
  }

  rdma_cm_id* const id_;
  bool connected_ = false;
  Guarded in_, out_;
  ibv_mr* in_mr_ = nullptr;
  ibv_mr* out_mr_ = nullptr;
};

void answer(rdma_cm_id* id) {
  End end(id);
  if (!end.accept()) return;
  for (uint64_t round = 0; end.receive(round); ++round) {
    if (!end.send(round)) return;
  }
}

void serve(const char* address, const char* port) {
  rdma_addrinfo* where = resolve(address, port, true);
  ibv_qp_init_attr attr = attributes();
  rdma_cm_id* listener = nullptr;
  need(rdma_create_ep(&listener, where, nullptr, &attr) == 0, "rdma_create_ep (listener)");
  need(rdma_listen(listener, 64) == 0, "rdma_listen");
  for (;;) {
    rdma_cm_id* id = nullptr;
    need(rdma_get_request(listener, &id) == 0, "rdma_get_request");
    std::thread(answer, id).detach();
  }
}

rdma_cm_id* dial(const char* address, const char* port) {
  rdma_addrinfo* where = resolve(address, port, false);
  ibv_qp_init_attr attr = attributes();
  rdma_cm_id* id = nullptr;
  need(rdma_create_ep(&id, where, nullptr, &attr) == 0, "rdma_create_ep");
  rdma_freeaddrinfo(where);
  return id;
}

/// Rounds of one connection, each counted in `counter` if there is one.
void work(const char* address, const char* port, uint64_t rounds, std::atomic<uint64_t>* counter) {
  rdma_cm_id* const id = dial(address, port);
  End end(id);
  need(end.connect(), "rdma_connect");
  for (uint64_t round = 0; round < rounds; ++round) {
    need(end.send(round) && end.receive(round), "the connection has ended");
    if (counter == nullptr) continue;
    ++*counter;
    usleep(500);
  }
}

void call(const char* address, const char* port) {
  std::thread lasting(work, address, port, ~uint64_t{0}, &book->rounds);
  for (;;) {
    work(address, port, kFreshRounds, nullptr);
    ++book->fresh;
    usleep(20'000);
  }
}

void open_book(const char* path) {
  const int fd = open(path, O_RDWR);
  need(fd >= 0, "the book");
  void* mapped = mmap(nullptr, sizeof(Book), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  need(mapped != MAP_FAILED, "mmap");
  close(fd);
  book = static_cast<Book*>(mapped);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 5 ? argv[1] : "";
  if (what != "serve" && what != "call") {
    std::fprintf(stderr, "usage: victim serve|call ADDRESS PORT BOOK\n");
    return 2;
  }
  open_book(argv[4]);
  what == "serve" ? serve(argv[2], argv[3]) : call(argv[2], argv[3]);
}
