// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What connections between processes of one user on this host need to leave TCP for shared memory.
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "carrier/access_gate.h"
#include "carrier/ring_carrier.h"
#include "connect/mailbox.h"
#include "machine.h"

namespace doctor {
namespace {

constexpr const char* kCheck = "same-host";

/// 0 or an errno.
int try_memory() {
  const auto memory = uwarp::SharedMemory::create(uwarp::RingCarrier::kSharedBytes);
  return memory.ok() ? 0 : memory.error();
}

/// A mailbox as connections have: a name of the abstract namespace, a filter, and a letter to it.
int try_mailbox() {
  uwarp::Progress progress;
  uwarp::Errands errands;
  const auto mailbox = uwarp::Mailbox::open({progress, errands}, 1, {});
  if (!mailbox) return mailbox.error();
  const int error = (*mailbox)->send((*mailbox)->name(), {}, {});
  (*mailbox)->close();
  return error;
}

/// Whether a process may read memory of one that it has not started: a child tries it with us.
int try_pull() {
  const pid_t reader = fork();
  if (reader < 0) return errno;
  if (reader == 0) {
    // Nowhere: what is permitted fails by its address alone.
    char byte;
    const iovec local = {&byte, 1}, remote = {nullptr, 1};
    const ssize_t got = process_vm_readv(getppid(), &local, 1, &remote, 1, 0);
    _exit(got >= 0 || errno == EFAULT ? 0 : errno);
  }
  int status = 0;
  if (waitpid(reader, &status, 0) != reader) return errno;
  return WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
}

/// Whether a process can be told from another one that has its number later.
bool try_process() {
  uwarp::PeerProcess process;
  return process.find(getpid()) && !process.gone();
}

std::string ptrace_scope() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  std::string text;
  file >> text;
  return text;
}

void report_memory(Report& report) {
  const int error = try_memory();
  if (error == 0)
    return report.ok(kCheck, "memory that two processes share can be made and sealed");
  report.warning(kCheck,
                 std::string("no sealed memory (memfd_create: ") + std::strerror(error) +
                     "), so connections on this host stay on TCP",
                 "Allow memfd_create in the seccomp profile");
}

void report_socket(Report& report) {
  const int error = try_mailbox();
  if (error == 0)
    return report.ok(kCheck, "processes of this network namespace meet by abstract Unix sockets");
  report.warning(kCheck,
                 std::string("no abstract Unix socket (") + std::strerror(error) +
                     "), so connections on this host stay on TCP",
                 "Allow AF_UNIX in the profile of seccomp, AppArmor or RestrictAddressFamilies=");
}

void report_pull(Report& report, const uwarp::Settings& settings) {
  if (settings.copies == uwarp::SharedCopies::kTwo)
    return report.ok(kCheck,
                     "Reads and Writes between processes need a thread of the target, and large "
                     "payloads are copied twice: UWARP_SHM_COPIES=two");
  const int error = try_pull();
  if (error == 0 && !try_process())
    return report.warning(kCheck,
                          "pidfd_open() or poll() on what it gives is refused, so Reads and Writes "
                          "between processes need a thread of the target",
                          "Allow pidfd_open in the seccomp profile");
  if (error == 0)
    return report.ok(kCheck,
                     "a process may read another's memory (process_vm_readv), so large payloads "
                     "are copied once, and Reads and Writes need no thread of the target");
  const std::string scope = ptrace_scope();
  const bool by_yama = error == EPERM && !scope.empty() && scope != "0";
  report.warning(
      kCheck,
      std::string("a process may not read another's memory (process_vm_readv: ") +
          std::strerror(error) + (by_yama ? ", kernel.yama.ptrace_scope=" + scope : "") +
          "), so large payloads are copied twice, and Reads and Writes need a thread of the target",
      by_yama ? "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE, if large messages matter"
              : "Allow process_vm_readv in the seccomp profile, if large messages matter");
}

}  // namespace

void check_same_host(Report& report, const uwarp::Settings& settings) {
  if (const char* const why = settings.why_only_tcp())
    return report.ok(kCheck, std::string("connections on this host stay on TCP: ") + why);
  report_memory(report);
  report_socket(report);
  report_pull(report, settings);
}

}  // namespace doctor
