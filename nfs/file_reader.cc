// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/file_reader.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "nfs/completions.h"
#include "nfs/patience.h"

namespace uwarp::nfs {

namespace {

void write_all(int file, ConstBytes data, uint64_t offset) {
  while (!data.empty()) {
    ssize_t written = pwrite(file, data.data(), data.size(), static_cast<off_t>(offset));
    if (written < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category());
    }
    size_t count = written < 0 ? 0 : static_cast<size_t>(written);
    data = data.subspan(count);
    offset += count;
  }
}

}  // namespace

void FileReader::read(const OpenFile& file, uint64_t size, int local, ProgressBar& progress) {
  Completions completions(client_.channel());
  Patience patience;
  uint64_t next = 0;
  auto start = [&](TransferSlot& slot) {
    client_.prepare_read(slot.call, file, slot.offset, slot.buffer->bytes().first(slot.length),
                         slot.buffer.get());
    completions.start(slot.call);
  };
  auto start_next = [&](TransferSlot& slot) {
    if (slots_.take_next(slot, next, size)) {
      start(slot);
    }
  };
  for (TransferSlot& slot : slots_.slots()) {
    start_next(slot);
  }
  while (completions.outstanding() > 0) {
    TransferSlot& slot = slots_.slot_of(completions.wait());
    NfsClient::ReadResult result;
    try {
      result = client_.finish_read(slot.call);
    } catch (const NfsError& error) {
      if (!patience.wait_after(error)) {
        throw;
      }
      start(slot);
      continue;
    }
    patience.renew();
    if (result.count == 0 || (result.end_of_file && result.count < slot.length)) {
      throw RpcError("the file became shorter while it was read");
    }
    write_all(local, slot.buffer->bytes().first(result.count), slot.offset);
    progress.advance(result.count);
    slot.offset += result.count;
    slot.length -= result.count;
    if (slot.length > 0) {
      start(slot);  // servers may give less than asked for
    } else {
      start_next(slot);
    }
  }
}

}  // namespace uwarp::nfs
