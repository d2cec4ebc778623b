// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The command line of nfs-rdma.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <functional>

#include "nfs/bench_command.h"
#include "nfs/file_commands.h"
#include "nfs/interrupt.h"
#include "nfs/printable.h"
#include "nfs/serve_command.h"

namespace uwarp::nfs {

namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;
constexpr int kSignalBase = 128;
constexpr uint32_t kRequestBytesMax = 16 << 20;
constexpr uint32_t kOutstandingMax = 256;

/// All that the command line says.
struct CommandLine {
  SessionOptions session;
  TransferOptions transfer;
  BenchOptions bench;
  ServeOptions serve;
  std::string url;
  std::string local;
  uint32_t inline_threshold = 0;
  uint64_t request_bytes = 1 << 20;
  uint32_t outstanding = 8;
  uint32_t seconds = 60;
  uint32_t mount_port = 0;
  std::string export_path;
  bool no_private_data = false;
  bool verbose = false;
  bool recursive = false;
  bool long_listing = false;
  bool parents = false;
  std::function<int()> run;
};

Caller this_process() {
  Caller caller{geteuid(), getegid(), {}};
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, getgroups(0, nullptr))));
  int count = getgroups(static_cast<int>(groups.size()), groups.data());
  caller.groups.assign(groups.begin(), groups.begin() + std::max(0, count));
  return caller;
}

void print_agreement(Session& session) {
  rpcrdma_settings agreed = session.channel().settings();
  fprintf(
      stderr,
      "inline threshold %u to the server, %u to the client; server sent %sRFC 8797 private data, "
      "with%s remote invalidation\n",
      agreed.client_to_server, agreed.server_to_client, agreed.peer_announced ? "" : "no ",
      agreed.peer_remote_invalidation ? "" : "out");
}

void print_statistics(Session& session) {
  rpcrdma_statistics counted = session.channel().statistics();
  fprintf(stderr,
          "calls %" PRIu64 ", connections %" PRIu64 ", sends %" PRIu64 ", receives %" PRIu64
          ", Read chunks %" PRIu64 ", Write chunks %" PRIu64 " (%" PRIu64
          " used), Reply chunks %" PRIu64 " (%" PRIu64 " used), remote invalidations %" PRIu64
          ", local %" PRIu64 ", credits %u\n",
          counted.calls, counted.connections, counted.sends, counted.receives, counted.read_chunks,
          counted.write_chunks, counted.write_chunks_used, counted.reply_chunks,
          counted.reply_chunks_used, counted.remote_invalidations, counted.local_invalidations,
          session.channel().settings().credits);
}

void take_over(CommandLine& line) {
  if (line.inline_threshold > 0) {
    line.session.channel.inline_threshold = line.serve.server.inline_threshold =
        line.inline_threshold;
  }
  line.session.channel.announce = line.serve.server.announce = !line.no_private_data;
  line.session.channel.timeout_ms = line.seconds * 1000;
  line.session.channel.credits = std::max(line.outstanding, 32u);
  if (line.mount_port > 0) {
    line.session.mount_port = static_cast<uint16_t>(line.mount_port);
  }
  if (!line.export_path.empty()) {
    line.session.export_path = line.export_path;
  }
  line.transfer.request_bytes = line.bench.request_bytes = line.request_bytes;
  line.transfer.outstanding = line.bench.outstanding = line.outstanding;
  line.transfer.copy.recursive = line.recursive;
  line.serve.verbose = line.verbose;
}

int with_session(CommandLine& line, const std::function<void(Session&)>& command) {
  Session session(Url::parse(line.url), line.session);
  Interrupt::watch();  // before, there was nothing to clean up
  if (line.verbose) {
    print_agreement(session);
  }
  command(session);
  if (line.verbose) {
    print_statistics(session);
  }
  return 0;
}

/// A number of bytes, such as 64k, up to `most`. The help shows none of CLI11's own description.
CLI::Validator size_up_to(uint64_t most) {
  return (CLI::AsSizeValue(false) & CLI::Range(uint64_t{1}, most)).description("");
}

/// A whole number from 1 to `most`.
CLI::Validator number_up_to(unsigned most) { return CLI::Range(1u, most).description(""); }

CLI::App* add_command(CLI::App& app, CommandLine& line, const std::string& name,
                      const std::string& what, const std::function<void(Session&)>& command) {
  CLI::App* made = app.add_subcommand(name, what);
  made->callback(
      [&line, command] { line.run = [&line, command] { return with_session(line, command); }; });
  return made;
}

void add_file_commands(CLI::App& app, CommandLine& line) {
  auto url = [&line](CLI::App* command) {
    command->add_option("URL", line.url, "rdma://HOST[:PORT]/EXPORT/PATH")->required();
  };
  url(add_command(app, line, "null", "Check that the server answers", null_command));
  url(add_command(app, line, "exports", "List the server's exports", exports_command));

  CLI::App* ls = add_command(app, line, "ls", "List a directory",
                             [&line](Session& session) { ls_command(session, line.long_listing); });
  url(ls);
  ls->add_flag("-l", line.long_listing, "Also show mode, owner, size and time (UTC)");

  url(add_command(app, line, "stat", "Show the attributes of a file", stat_command));

  CLI::App* get =
      add_command(app, line, "get", "Copy a file from the server",
                  [&line](Session& session) { get_command(session, line.local, line.transfer); });
  url(get);
  get->add_option("FILE", line.local, "Local file, or directory to put it in")->required();

  CLI::App* put =
      add_command(app, line, "put", "Copy a file to the server",
                  [&line](Session& session) { put_command(session, line.local, line.transfer); });
  put->add_option("FILE", line.local, "Local file")->required();
  url(put);

  for (CLI::App* copy : {get, put}) {
    copy->add_flag("-r,--recursive", line.recursive, "Also directories, with all that is in them");
    copy->add_flag("-p,--preserve", line.transfer.copy.preserve_times,
                   "Keep the times of the files");
  }

  CLI::App* rm = add_command(app, line, "rm", "Remove a file or an empty directory",
                             [&line](Session& session) { rm_command(session, line.recursive); });
  url(rm);
  rm->add_flag("-r,--recursive", line.recursive, "Also directories, with all that is in them");

  CLI::App* mkdir = add_command(app, line, "mkdir", "Make a directory", [&line](Session& session) {
    mkdir_command(session, line.parents);
  });
  url(mkdir);
  mkdir->add_flag("-p,--parents", line.parents, "Make parents too; no error if it exists");
}

void add_bench(CLI::App& app, CommandLine& line) {
  CLI::App* made = app.add_subcommand("bench", "Measure how fast the server answers READs");
  made->add_option("URL", line.url, "A file to read, or a directory in which to make one")
      ->required();
  made->add_option("--thresholds", line.bench.thresholds,
                   "Inline thresholds to offer, each on a connection of its own")
      ->delimiter(',');
  made->add_option("--random-size", line.bench.random_bytes, "Size of the random READs")
      ->transform(size_up_to(kRequestBytesMax))
      ->type_name("BYTES")
      ->capture_default_str();
  made->add_option("--seconds", line.bench.seconds, "Duration of each measurement")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  made->add_option("--file-size", line.bench.file_bytes, "Size of the file made")
      ->transform(size_up_to(UINT64_MAX))
      ->type_name("BYTES")
      ->capture_default_str();
  made->add_flag("--json", line.bench.json, "Print JSON");
  made->callback([&line] {
    line.run = [&line] { return bench_command(Url::parse(line.url), line.session, line.bench); };
  });
}

void add_serve(CLI::App& app, CommandLine& line) {
  CLI::App* made = app.add_subcommand(
      "serve",
      "Be a small server for tests. It reads DIR into memory once and serves that copy: clients\n"
      "can change the copy only, and the changes are lost when the server ends");
  ServeOptions& serve = line.serve;
  serve.server.host = "127.0.0.1";
  serve.server.port = kDefaultPort;
  made->add_option("DIR", serve.directory, "Directory to read")
      ->required()
      ->check(CLI::ExistingDirectory);
  made->add_option("--bind", serve.server.host, "Address to listen on")->capture_default_str();
  made->add_option("--port", serve.server.port,
                   "Port to listen on; 0: a free one, printed on stdout")
      ->check(CLI::Range(0, 65535).description(""))
      ->type_name("PORT")
      ->capture_default_str();
  made->add_option("--export-path", serve.export_path, "Name of the export")->capture_default_str();
  made->add_option("--memory", serve.memory_bytes,
                   "Limit of memory for all files; default: half of the machine's")
      ->transform(size_up_to(UINT64_MAX))
      ->type_name("BYTES");
  made->add_flag("--read-only", serve.read_only, "Refuse changes");
  made->callback([&line] { line.run = [&line] { return serve_command(line.serve); }; });
}

void add_options(CLI::App& app, CommandLine& line) {
  app.add_option("--inline", line.inline_threshold,
                 "Inline threshold to offer in bytes: larger messages use RDMA")
      ->transform(size_up_to(RPCRDMA_INLINE_MAX))
      ->type_name("BYTES");
  app.add_flag("--no-private-data", line.no_private_data,
               "Send no RFC 8797 private data: the threshold is 1024");
  app.add_option("--size", line.request_bytes, "Largest READ and WRITE in bytes")
      ->transform(size_up_to(kRequestBytesMax))
      ->type_name("BYTES")
      ->capture_default_str();
  app.add_option("-j,--jobs,--outstanding", line.outstanding,
                 "How many READs or WRITEs to send before replies come")
      ->check(number_up_to(kOutstandingMax))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--timeout", line.seconds, "Seconds to wait for a reply")
      ->check(number_up_to(86400))
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("--mountport", line.mount_port, "TCP port of the server's mountd")
      ->check(number_up_to(65535))
      ->type_name("PORT");
  app.add_option("--export", line.export_path,
                 "The export that contains PATH; default: asked from the server")
      ->type_name("EXPORT");
  app.add_option("--uid", line.session.caller.uid, "User of the AUTH_SYS credentials");
  app.add_option("--gid", line.session.caller.gid, "Group of the AUTH_SYS credentials");
  app.add_option("--nfs-version,--vers", line.session.version, "Version of NFS: 3 or 4 (4.0)")
      ->check(CLI::IsMember({3, 4}).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("-v,--verbose", line.verbose,
               "Print what the connection agreed on, and count messages");
}

int run(int argc, char** argv) {
  CommandLine line;
  line.session.caller = this_process();
  CLI::App app(
      "Copies files to and from NFS servers over RDMA (RFC 8166, RFC 8267). Nothing is mounted.",
      "nfs-rdma");
  app.footer(
      "Examples, on a machine without RDMA hardware:\n"
      "  uwarp-run nfs-rdma serve ~/data &\n"
      "  uwarp-run nfs-rdma ls -l rdma://127.0.0.1/export\n"
      "  uwarp-run nfs-rdma get -r rdma://127.0.0.1/export/results .\n"
      "  uwarp-run nfs-rdma put big.iso rdma://127.0.0.1/export/\n"
      "\n"
      "nfs-rdma SUBCOMMAND --help describes a subcommand, nfs-rdma(1) everything.");
  app.set_version_flag("--version", UWARP_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  add_options(app, line);
  add_file_commands(app, line);
  add_bench(app, line);
  add_serve(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  take_over(line);
  return line.run();
}

}  // namespace

}  // namespace uwarp::nfs

int main(int argc, char** argv) {
  using namespace uwarp::nfs;
  try {
    int status = run(argc, argv);
    if (fflush(stdout) != 0) {
      throw std::system_error(errno, std::generic_category(), "standard output");
    }
    return status;
  } catch (const Interrupted&) {
    fputs("nfs-rdma: interrupted\n", stderr);
    return kSignalBase + Interrupt::signal_number();
  } catch (const UrlError& error) {
    fprintf(stderr, "nfs-rdma: %s\n", printable(error.what()).c_str());
    return kUsage;
  } catch (const std::exception& error) {
    fprintf(stderr, "nfs-rdma: %s\n", printable(error.what()).c_str());
    return kFailure;
  }
}
