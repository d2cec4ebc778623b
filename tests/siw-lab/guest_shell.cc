// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// guest_shell serve PORT               in the guest, as its last process 1: one command a
// connection guest_shell ADDRESS PORT COMMAND...  on the host: the command's output and exit status
// as if local
//
// A COMMAND of one word is a line for the shell, several are a program and its arguments.
// The guest trusts each peer that can connect, so this belongs on a network of its own. The
// command's life hangs on the connection: when the host's side is killed, so is every process of
// the command.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

// What the guest sends is the output, then this mark and the status as one byte.
constexpr std::string_view kMark("\0status\0", 8);
constexpr size_t kTrailer = kMark.size() + 1;
constexpr int kOwnFailure = 125;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "guest_shell: %s: %s\n", what, std::strerror(errno));
  std::exit(kOwnFailure);
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

/// The command ends with a zero byte.
std::string read_command(int fd) {
  std::string command;
  char byte = 0;
  while (recv(fd, &byte, 1, 0) == 1) {
    if (byte == 0) return command;
    command += byte;
  }
  std::exit(0);
}

pid_t start(const std::string& command, int output) {
  const pid_t child = fork();
  if (child < 0) die("fork");
  if (child > 0) return child;
  setpgid(0, 0);
  dup2(output, 1);
  dup2(output, 2);
  if (freopen("/dev/null", "r", stdin) == nullptr) std::exit(kOwnFailure);
  execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
  std::exit(kOwnFailure);
}

/// What the command has written so far; false when its end of the pipe is closed or the host gone.
bool pass_on(int output, int host) {
  char buffer[65536];
  const ssize_t count = read(output, buffer, sizeof buffer);
  return count > 0 && send_all(host, {buffer, static_cast<size_t>(count)});
}

bool readable(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return poll(&waiting, 1, 0) == 1;
}

/// Passes the output on until the command has ended or the host has gone. Processes that the
/// command leaves in the background may keep the pipe open: its own end counts.
void relay(int host, int output, pid_t child) {
  const int end = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  if (end < 0) die("pidfd_open");
  pollfd fds[3] = {{output, POLLIN, 0}, {end, POLLIN, 0}, {host, POLLRDHUP, 0}};
  while (fds[1].revents == 0 && fds[2].revents == 0) {
    if (poll(fds, 3, -1) < 0) die("poll");
    if (fds[0].revents != 0 && !pass_on(output, host)) fds[0].fd = -1;
  }
  if (fds[1].revents == 0) {
    kill(-child, SIGKILL);
    return;
  }
  while (readable(output) && pass_on(output, host)) {
  }
  int status = 0;
  waitpid(child, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  send_all(host, std::string(kMark) + static_cast<char>(code));
}

[[noreturn]] void serve_one(int host) {
  signal(SIGCHLD, SIG_DFL);
  const std::string command = read_command(host);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) die("pipe");
  const pid_t child = start(command, ends[1]);
  close(ends[1]);
  relay(host, ends[0], child);
  std::exit(0);
}

int serve(uint16_t port) {
  // As process 1: orphans need no waiting for.
  signal(SIGCHLD, SIG_IGN);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(port);
  if (bind(listener, reinterpret_cast<sockaddr*>(&where), sizeof where) != 0) die("bind");
  if (listen(listener, 64) != 0) die("listen");
  for (;;) {
    const int host = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (host < 0) continue;
    if (fork() == 0) {
      close(listener);
      serve_one(host);
    }
    close(host);
  }
}

int connect_to(const char* address, uint16_t port) {
  const int guest = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(port);
  if (inet_pton(AF_INET, address, &where.sin_addr) != 1) die(address);
  if (connect(guest, reinterpret_cast<sockaddr*>(&where), sizeof where) != 0) die("connect");
  const int one = 1;
  setsockopt(guest, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return guest;
}

std::string quoted(std::string_view word) {
  std::string result = "'";
  for (const char each : word) {
    if (each == '\'') {
      result += "'\\''";
    } else {
      result += each;
    }
  }
  return result + "' ";
}

std::string command_line(int count, char** words) {
  if (count == 1) return words[0];
  std::string line = "exec ";
  for (int i = 0; i < count; ++i) line += quoted(words[i]);
  return line;
}

int run(const char* address, uint16_t port, const std::string& command) {
  const int guest = connect_to(address, port);
  if (!send_all(guest, {command.c_str(), command.size() + 1})) die("send");
  std::string held;  // The last bytes may be the trailer.
  char buffer[65536];
  for (;;) {
    const ssize_t count = recv(guest, buffer, sizeof buffer, 0);
    if (count <= 0) break;
    held.append(buffer, static_cast<size_t>(count));
    if (held.size() <= kTrailer) continue;
    write_all(1, {held.data(), held.size() - kTrailer});
    held.erase(0, held.size() - kTrailer);
  }
  if (held.size() == kTrailer && held.starts_with(kMark)) {
    return static_cast<unsigned char>(held.back());
  }
  write_all(1, held);
  std::fprintf(stderr, "guest_shell: the guest has gone\n");
  return kOwnFailure;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "serve") {
    return serve(static_cast<uint16_t>(std::atoi(argv[2])));
  }
  if (argc >= 4) {
    return run(argv[1], static_cast<uint16_t>(std::atoi(argv[2])),
               command_line(argc - 3, argv + 3));
  }
  std::fprintf(stderr, "usage: guest_shell serve PORT | guest_shell ADDRESS PORT COMMAND...\n");
  return 2;
}
