// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/file_commands.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string_view>

#include "nfs/file_descriptor.h"
#include "nfs/interrupt.h"
#include "nfs/printable.h"
#include "nfs/putter.h"

namespace uwarp::nfs {

namespace {

std::string shown(const std::string& name) {
  return isatty(STDOUT_FILENO) == 1 ? printable(name) : name;
}

std::string mode_text(const Attributes& attributes) {
  constexpr std::string_view kTypes = "?-dbclsp";
  constexpr std::string_view kBits = "rwxrwxrwx";
  std::string text(1, kTypes[static_cast<size_t>(attributes.type)]);
  for (size_t i = 0; i < kBits.size(); ++i) {
    text += attributes.mode & (0400u >> i) ? kBits[i] : '-';
  }
  return text;
}

std::string time_text(const NfsTime& time) {
  time_t seconds = time.seconds;
  struct tm fields;
  char text[64];
  gmtime_r(&seconds, &fields);
  strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &fields);
  return text;
}

void print_line(const std::string& name, const Attributes& attributes) {
  printf("%s %4u %7u %7u %14" PRIu64 " %s %s\n", mode_text(attributes).c_str(),
         attributes.link_count, attributes.uid, attributes.gid, attributes.size,
         time_text(attributes.modified).c_str(), shown(name).c_str());
}

std::string last_name(const std::string& path) { return std::filesystem::path(path).filename(); }

size_t request_bytes(const TransferOptions& options, uint32_t server_max) {
  // A server that says 0 gives no limit.
  return server_max > 0 ? std::min<size_t>(options.request_bytes, server_max)
                        : options.request_bytes;
}

void remove_tree(NfsClient& client, const Place& place, const Found& found, unsigned depth) {
  Interrupt::check();
  if (depth == kDepthMax) {
    throw RpcError(place.name + ": directories nested too deep");
  }
  if (found.attributes.type != FileType::kDirectory) {
    client.remove(place.directory, place.name);
    return;
  }
  for (const DirectoryEntry& entry : client.list(found.handle)) {
    remove_tree(client, {found.handle, entry.name}, client.lookup(found.handle, entry.name),
                depth + 1);
  }
  client.remove_directory(place.directory, place.name);
}

const char* type_name(FileType type) {
  switch (type) {
    case FileType::kRegular:
      return "regular file";
    case FileType::kDirectory:
      return "directory";
    case FileType::kBlockDevice:
      return "block device";
    case FileType::kCharacterDevice:
      return "character device";
    case FileType::kSymlink:
      return "symbolic link";
    case FileType::kSocket:
      return "socket";
    case FileType::kFifo:
      return "fifo";
  }
  return "unknown";
}

}  // namespace

void null_command(Session& session) {
  using Clock = std::chrono::steady_clock;
  auto begin = Clock::now();
  session.client().null();
  double microseconds = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  printf("NFS version %u answers at %s, %.0f us\n", session.client().version(),
         session.url().host.c_str(), microseconds);
}

void exports_command(Session& session) {
  for (const ExportEntry& entry : session.exports()) {
    std::string groups;
    for (const std::string& group : entry.groups) {
      groups += " " + group;
    }
    printf("%s%s\n", shown(entry.path).c_str(), shown(groups).c_str());
  }
}

void ls_command(Session& session, bool with_attributes) {
  const std::string& path = session.url().path;
  RemoteTree& tree = session.tree();
  auto found = tree.find(path);
  if (found.attributes.type != FileType::kDirectory) {
    with_attributes ? print_line(last_name(path), found.attributes)
                    : static_cast<void>(puts(shown(last_name(path)).c_str()));
    return;
  }
  std::vector<DirectoryEntry> entries;
  try {
    entries = session.client().list(found.handle);
  } catch (const NfsError& error) {
    throw error.about(path);
  }
  std::ranges::sort(entries, {}, &DirectoryEntry::name);
  for (const DirectoryEntry& entry : entries) {
    if (!with_attributes) {
      puts(shown(entry.name).c_str());
    } else if (entry.attributes) {
      print_line(entry.name, *entry.attributes);
    } else {
      print_line(entry.name, session.client().lookup(found.handle, entry.name).attributes);
    }
  }
}

void stat_command(Session& session) {
  const std::string& path = session.url().path;
  auto found = session.tree().find(path);
  const Attributes& attributes = found.attributes;
  printf("path: %s\ntype: %s\nmode: %04o\nlinks: %u\nuid: %u\ngid: %u\nsize: %" PRIu64
         "\nused: %" PRIu64 "\nfileid: %" PRIu64 "\nmodified: %s.%09u\n",
         shown(path).c_str(), type_name(attributes.type), attributes.mode, attributes.link_count,
         attributes.uid, attributes.gid, attributes.size, attributes.used, attributes.file_id,
         time_text(attributes.modified).c_str(), attributes.modified.nanoseconds);
  if (attributes.type == FileType::kSymlink) {
    printf("target: %s\n", shown(session.client().read_link(found.handle)).c_str());
  }
}

void get_command(Session& session, const std::string& destination, const TransferOptions& options) {
  const std::string& path = session.url().path;
  auto found = session.tree().find(path);
  std::filesystem::path to = destination;
  if (!to.has_filename()) {
    to = to.parent_path();  // "directory/"
  }
  // A directory copied to one that exists is merged with it only if that has its name: as with cp.
  if (std::filesystem::is_directory(to)) {
    to /= last_name(path);
  }
  std::string parent = to.has_parent_path() ? to.parent_path().string() : ".";
  FileDescriptor directory(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), parent);
  FilesystemInfo info = session.client().filesystem_info(found.handle);
  TransferSlots slots(session.channel(), options.outstanding,
                      request_bytes(options, info.read_bytes_max));
  Getter(session.client(), slots, options.copy)
      .get(found, {directory.get(), to.filename(), to}, path);
}

void put_command(Session& session, const std::string& source, const TransferOptions& options) {
  RemoteTree& tree = session.tree();
  std::filesystem::path from = source;
  if (!from.has_filename()) {
    from = from.parent_path();
  }
  std::string path = session.url().path;
  auto existing = tree.find_if_exists(path);
  if (existing && existing->attributes.type == FileType::kDirectory) {
    path += "/" + std::filesystem::absolute(from).lexically_normal().filename().string();
  }
  Place place = existing && path != session.url().path ? Place{existing->handle, last_name(path)}
                                                       : tree.place_of(path);
  FilesystemInfo info = session.client().filesystem_info(place.directory);
  TransferSlots slots(session.channel(), options.outstanding,
                      request_bytes(options, info.write_bytes_max));
  Putter(session.client(), slots, options.copy).put(from, place);
}

void rm_command(Session& session, bool recursive) {
  const std::string& path = session.url().path;
  RemoteTree& tree = session.tree();
  auto place = tree.place_of(path);
  try {
    auto found = session.client().lookup(place.directory, place.name);
    if (found.attributes.type == FileType::kDirectory && !recursive) {
      session.client().remove_directory(place.directory, place.name);
    } else {
      remove_tree(session.client(), place, found, 0);
    }
  } catch (const NfsError& error) {
    throw error.about(path);
  }
}

void mkdir_command(Session& session, bool parents) {
  RemoteTree& tree = session.tree();
  NewAttributes wanted;
  wanted.mode = 0755;
  const std::string path = session.url().path;
  const auto missing = parents ? tree.missing(path) : std::vector{path};
  for (auto each = missing.rbegin(); each != missing.rend(); ++each) {
    auto place = tree.place_of(*each);
    try {
      session.client().make_directory(place.directory, place.name, wanted);
    } catch (const NfsError& error) {
      throw error.about(*each);
    }
  }
}

}  // namespace uwarp::nfs
