// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/file_writer.h"

#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "nfs/completions.h"
#include "nfs/patience.h"

namespace uwarp::nfs {

namespace {

void read_all(int file, Bytes data, uint64_t offset) {
  while (!data.empty()) {
    ssize_t count = pread(file, data.data(), data.size(), static_cast<off_t>(offset));
    if (count == 0) {
      throw RpcError("the file became shorter while it was read");
    }
    if (count < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category());
    }
    data = data.subspan(count < 0 ? 0 : static_cast<size_t>(count));
    offset += count < 0 ? 0 : static_cast<uint64_t>(count);
  }
}

/// Unstable data is lost when the server restarts before it is committed; then its verifier
/// changes (RFC 1813, section 3.3.7).
class VerifierWatch {
 public:
  void see(uint64_t verifier) {
    if (verifier_ && *verifier_ != verifier) {
      throw RpcError("the server was restarted during the transfer");
    }
    verifier_ = verifier;
  }

 private:
  std::optional<uint64_t> verifier_;
};

}  // namespace

void FileWriter::write(int local, uint64_t size, const OpenFile& file, ProgressBar& progress) {
  Completions completions(client_.channel());
  VerifierWatch verifier;
  Patience patience;
  bool needs_commit = false;
  uint64_t next = 0;
  auto start = [&](TransferSlot& slot, size_t written) {
    client_.prepare_write(slot.call, file, slot.offset,
                          slot.buffer->bytes().subspan(written, slot.length), Stability::kUnstable,
                          slot.buffer.get());
    completions.start(slot.call);
  };
  auto start_next = [&](TransferSlot& slot) {
    if (slots_.take_next(slot, next, size)) {
      read_all(local, slot.buffer->bytes().first(slot.length), slot.offset);
      start(slot, 0);
    }
  };
  for (TransferSlot& slot : slots_.slots()) {
    start_next(slot);
  }
  while (completions.outstanding() > 0) {
    TransferSlot& slot = slots_.slot_of(completions.wait());
    size_t written = static_cast<size_t>(slot.call.item.data() - slot.buffer->bytes().data());
    NfsClient::WriteResult result;
    try {
      result = client_.finish_write(slot.call);
    } catch (const NfsError& error) {
      if (!patience.wait_after(error)) {
        throw;
      }
      start(slot, written);
      continue;
    }
    patience.renew();
    verifier.see(result.verifier);
    needs_commit |= result.stability != Stability::kFileSync;
    progress.advance(result.count);
    slot.offset += result.count;
    slot.length -= result.count;
    if (slot.length > 0) {  // servers may take less than given
      start(slot, written + result.count);
    } else {
      start_next(slot);
    }
  }
  if (needs_commit) {
    verifier.see(client_.commit(file));
  }
}

}  // namespace uwarp::nfs
