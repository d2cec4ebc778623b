// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/serve_command.h"

#include <signal.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <memory>

#include "nfs/initial_content.h"
#include "nfs/mount_service.h"
#include "nfs/nfs3_service.h"
#include "nfs/nfs4_service.h"

namespace uwarp::nfs {

namespace {

uint64_t half_of_memory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
}

/// Threads made from now on leave these signals to the sigwait() of serve_command().
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

void print_statistics(const RdmaServer& server) {
  rpcrdma_statistics counted = server.statistics();
  fprintf(stderr,
          "calls %" PRIu64 ", connections %" PRIu64 ", sends %" PRIu64 ", receives %" PRIu64
          ", RDMA Reads %" PRIu64 ", RDMA Writes %" PRIu64 ", Read chunks %" PRIu64
          ", Write chunks %" PRIu64 ", Reply chunks %" PRIu64 ", remote invalidations %" PRIu64
          "\n",
          counted.calls, counted.connections, counted.sends, counted.receives, counted.rdma_reads,
          counted.rdma_writes, counted.read_chunks, counted.write_chunks_used,
          counted.reply_chunks_used, counted.remote_invalidations);
}

std::string url_host(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

}  // namespace

int serve_command(const ServeOptions& options) {
  sigset_t signals = block_signals();
  auto tree = std::make_shared<MemoryTree>(
      options.memory_bytes > 0 ? options.memory_bytes : half_of_memory(), options.read_only);
  load_initial_content(options.directory, *tree);
  NodeHandles handles;
  RpcDispatcher dispatcher;
  dispatcher.add(
      std::make_unique<MountService>(options.export_path, handles.handle_of(MemoryTree::kRoot)));
  dispatcher.add(std::make_unique<Nfs3Service>(tree, handles));
  dispatcher.add(std::make_unique<Nfs4Service>(tree, handles, options.export_path));
  RdmaServer server(dispatcher, options.server);
  printf("serving rdma://%s:%u%s\n", url_host(options.server.host).c_str(), server.port(),
         options.export_path.c_str());
  fflush(stdout);
  int number = 0;
  sigwait(&signals, &number);
  if (options.verbose) {
    print_statistics(server);
  }
  return 0;
}

}  // namespace uwarp::nfs
