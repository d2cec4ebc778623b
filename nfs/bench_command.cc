// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/bench_command.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "nfs/completions.h"
#include "nfs/interrupt.h"
#include "nfs/read_load.h"
#include "nfs/temporary_name.h"

namespace uwarp::nfs {

namespace {

using Json = nlohmann::ordered_json;

/// The file that is read: the one of the URL, or one made in the directory of the URL, which goes
/// with this object.
class BenchFile {
 public:
  BenchFile(RemoteTree& tree, const std::string& path, const BenchOptions& options)
      : client_(tree.client()) {
    found_ = tree.find(path);
    if (found_.attributes.type == FileType::kDirectory) {
      try {
        make(found_.handle, options);
      } catch (...) {
        remove();
        throw;
      }
    }
    if (size() < std::max(options.request_bytes, options.random_bytes)) {
      throw RpcError(path + ": smaller than one request");
    }
  }
  ~BenchFile() { remove(); }
  BenchFile(const BenchFile&) = delete;
  BenchFile& operator=(const BenchFile&) = delete;

  const Found& found() const { return found_; }
  uint64_t size() const { return found_.attributes.size; }

 private:
  void remove() {
    if (made_.name.empty()) {
      return;
    }
    Interrupt::forget();
    try {
      client_.remove(made_.directory, made_.name);
    } catch (const std::exception& error) {
      fprintf(stderr, "nfs-rdma: %s remains on the server: %s\n", made_.name.c_str(), error.what());
    }
  }

  void make(const FileHandle& directory, const BenchOptions& options) {
    std::string name = temporary_name("bench");
    NewAttributes wanted;
    wanted.mode = 0600;
    OpenFile file = client_.create(directory, name, CreateHow::kGuarded, wanted);
    made_ = {directory, name};
    try {
      fill(file, options);
    } catch (...) {
      client_.abandon(file);
      throw;
    }
    client_.close(file);
    found_ = client_.lookup(directory, name);
  }

  void fill(const OpenFile& file, const BenchOptions& options) {
    TransferSlots slots(client_.channel(), 1, options.request_bytes);
    TransferSlot& slot = slots.slots().front();
    Bytes bytes = slot.buffer->bytes();
    std::minstd_rand random;
    std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
    Completions completions(client_.channel());
    uint64_t written = 0;
    while (written < options.file_bytes) {
      client_.prepare_write(slot.call, file, written, bytes, Stability::kUnstable,
                            slot.buffer.get());
      completions.start(slot.call);
      written += client_.finish_write(completions.wait()).count;
    }
    client_.commit(file);
  }

  NfsClient& client_;
  Place made_;  // no name: nothing was made
  Found found_;
};

Json figures_json(const LoadFigures& figures, size_t request_bytes) {
  return {{"request_bytes", request_bytes},
          {"requests", figures.requests},
          {"seconds", figures.seconds},
          {"requests_per_second", static_cast<double>(figures.requests) / figures.seconds},
          {"bytes_per_second", static_cast<double>(figures.bytes) / figures.seconds},
          {"replies_with_write_chunk", figures.chunked}};
}

Json measure(Session& session, const OpenFile& file, uint64_t size, const BenchOptions& options) {
  NfsClient& client = session.client();
  Json result;
  rpcrdma_settings settings = session.channel().settings();
  result["client_to_server"] = settings.client_to_server;
  result["server_to_client"] = settings.server_to_client;
  {
    TransferSlots slots(client.channel(), options.outstanding, options.request_bytes);
    uint64_t next = 0;
    auto figures = run_read_load(client, file, slots, options.seconds, [&] {
      uint64_t offset = next + options.request_bytes > size ? 0 : next;
      next = offset + options.request_bytes;
      return offset;
    });
    result["sequential"] = figures_json(figures, options.request_bytes);
  }
  TransferSlots slots(client.channel(), options.outstanding, options.random_bytes);
  std::minstd_rand random;
  std::uniform_int_distribution<uint64_t> place(0, size / options.random_bytes - 1);
  auto figures = run_read_load(client, file, slots, options.seconds,
                               [&] { return place(random) * options.random_bytes; });
  result["random"] = figures_json(figures, options.random_bytes);
  return result;
}

void print(const Json& result) {
  const Json& sequential = result["sequential"];
  const Json& random = result["random"];
  printf("thresholds %u to the server, %u to the client\n",
         result["client_to_server"].get<unsigned>(), result["server_to_client"].get<unsigned>());
  printf("  sequential, %zu bytes: %8.3f GB/s %10.0f requests/s\n",
         sequential["request_bytes"].get<size_t>(),
         sequential["bytes_per_second"].get<double>() / 1e9,
         sequential["requests_per_second"].get<double>());
  printf("  random,     %zu bytes: %8.3f GB/s %10.0f requests/s, %s\n",
         random["request_bytes"].get<size_t>(), random["bytes_per_second"].get<double>() / 1e9,
         random["requests_per_second"].get<double>(),
         random["replies_with_write_chunk"].get<uint64_t>() > 0 ? "by RDMA Write" : "inline");
}

}  // namespace

int bench_command(const Url& url, const SessionOptions& session_options,
                  const BenchOptions& options) {
  Session filling(url, session_options);
  Interrupt::watch();
  BenchFile file(filling.tree(), url.path, options);
  std::vector<std::optional<uint32_t>> thresholds(options.thresholds.begin(),
                                                  options.thresholds.end());
  if (thresholds.empty()) {
    thresholds.push_back(session_options.channel.inline_threshold);
  }
  Json results = Json::array();
  for (const auto& threshold : thresholds) {
    SessionOptions one = session_options;
    one.channel.inline_threshold = threshold;
    Session session(url, one);
    OpenFile opened = session.client().open(file.found());
    results.push_back(measure(session, opened, file.size(), options));
    session.client().close(opened);
    if (!options.json) {
      print(results.back());
    }
  }
  if (options.json) {
    Json all = {
        {"outstanding", options.outstanding}, {"file_bytes", file.size()}, {"results", results}};
    printf("%s\n", all.dump(2).c_str());
  }
  return 0;
}

}  // namespace uwarp::nfs
