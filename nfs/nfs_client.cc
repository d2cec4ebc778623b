// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/nfs_client.h"

#include <algorithm>

#include "nfs/interrupt.h"

namespace uwarp::nfs {

namespace {

constexpr size_t kListEntriesMax = 4 << 20;
/// "." and "..", which a listing has once, or not at all.
constexpr size_t kSelfAndParentMax = 64;

bool is_self_or_parent(const std::string& name) { return name == "." || name == ".."; }

/// Listings become names of local files, so the server must not choose where these lie.
void check_listed_name(const std::string& name) {
  if (name.empty() || name.size() > kNameBytesMax || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    throw RpcError("the server lists a file with an impossible name");
  }
}

}  // namespace

std::vector<DirectoryEntry> NfsClient::list(const FileHandle& directory) {
  std::vector<DirectoryEntry> all;
  ListPage page;
  size_t left_out = 0;
  while (!page.end) {
    uint64_t begin = page.cookie;
    page.entries.clear();
    next_page(directory, page);
    for (DirectoryEntry& entry : page.entries) {
      if (is_self_or_parent(entry.name)) {
        ++left_out;
        continue;
      }
      check_listed_name(entry.name);
      all.push_back(std::move(entry));
    }
    if ((page.cookie == begin && !page.end) || all.size() > kListEntriesMax ||
        left_out > kSelfAndParentMax) {
      throw RpcError("the server's listing does not come to an end");
    }
  }
  return all;
}

void NfsClient::abandon(const OpenFile& file) noexcept {
  Interrupt::forget();
  try {
    close(file);
  } catch (const std::exception&) {
    // It goes when the server forgets this client.
  }
}

size_t NfsClient::take_data(const RpcCall& call, XdrReader& in) {
  if (call.result_received > 0) {
    size_t count = in.u32();
    if (count > call.result_received || count > call.result.size()) {
      throw XdrError("the count of a READ is not what was written");
    }
    return count;
  }
  ConstBytes data = in.opaque(call.result.size());
  std::ranges::copy(data, call.result.begin());
  return data.size();
}

NfsClient::WriteResult NfsClient::decode_written(const RpcCall& call, XdrReader& in) {
  WriteResult result;
  result.count = in.u32();
  uint32_t stability = in.u32();
  result.verifier = in.u64();
  if (result.count == 0 || result.count > call.item.size() ||
      stability > static_cast<uint32_t>(Stability::kFileSync)) {
    throw XdrError("the server wrote more than it was given, or nothing");
  }
  result.stability = static_cast<Stability>(stability);
  return result;
}

}  // namespace uwarp::nfs
