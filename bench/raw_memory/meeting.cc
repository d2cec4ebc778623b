// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "raw_memory/meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <string>

#include "ends/sockets.h"

namespace uwarp::bench {
namespace {

/// What an end sends to the other one.
struct Card {
  pid_t process;
  int file;  // the server's, of the shared memory
};

int make_file(size_t bytes) {
  const int file = memfd_create("raw_memory", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) die("memfd_create");
  return file;
}

int open_file_of(const Card& server) {
  const std::string path =
      "/proc/" + std::to_string(server.process) + "/fd/" + std::to_string(server.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) die(path.c_str());
  return file;
}

Ring* map(int file, size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (memory == MAP_FAILED) die("mmap");
  return static_cast<Ring*>(memory);
}

Card exchange(int control, const Card& own) {
  Card other{};
  send_all(control, reinterpret_cast<const char*>(&own), sizeof own);
  if (!receive_all(control, reinterpret_cast<char*>(&other), sizeof other)) die("no peer");
  return other;
}

}  // namespace

Meeting meet(const Ends& ends) {
  constexpr size_t kBytes = 2 * sizeof(Ring);
  // Where a kernel has the Yama module, a process must permit other processes to read its memory.
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  const int made = ends.client() ? -1 : make_file(kBytes);
  const int control = open_one(ends);
  const Card other = exchange(control, {getpid(), made});
  Ring* const rings = map(ends.client() ? open_file_of(other) : made, kBytes);
  // The server's file may go once the client has it, which a second exchange says.
  exchange(control, other);
  Ring& forth = rings[0];
  Ring& back = rings[1];
  return {ends.client() ? forth : back, ends.client() ? back : forth, other.process};
}

}  // namespace uwarp::bench
