// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// several_writes URL LENGTH...   makes a file by one COMPOUND of NFS version 4 that has a WRITE for
//                                each length, and then one operation more; the n-th WRITE is of the
//                                n-th letter. The data of each is a Read chunk of its own.
//
// Our client puts one WRITE into a COMPOUND. This is for servers: the chunks have no padding, but
// what follows them begins at a multiple of four bytes (RFC 8166, sections 3.4.4 and 3.4.5.2).

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "nfs/compound.h"
#include "nfs/nfs4_client.h"
#include "nfs/session.h"

namespace uwarp::nfs {
namespace {

/// A COMPOUND in pieces: what comes before each item, the item, and what comes behind the last.
class SeveralWrites {
 public:
  SeveralWrites(const OpenFile& file, const std::vector<size_t>& lengths) {
    for (size_t length : lengths) {
      items_.emplace_back(length, static_cast<std::byte>('a' + items_.size()));
    }
    uint64_t offset = 0;
    XdrWriter out;
    out.string("");
    out.u32(kNfs4MinorVersion);
    out.u32(static_cast<uint32_t>(lengths.size()) + 2);
    out.u32(static_cast<uint32_t>(Nfs4Operation::kPutfh));
    encode_handle4(out, file.handle);
    for (size_t length : lengths) {
      out.u32(static_cast<uint32_t>(Nfs4Operation::kWrite));
      encode(out, file.state);
      out.u64(offset);
      out.u32(static_cast<uint32_t>(Stability::kFileSync));
      out.item(length);
      texts_.push_back(std::move(out).take());
      out = XdrWriter();
      offset += length;
    }
    out.u32(static_cast<uint32_t>(Nfs4Operation::kGetfh));
    texts_.push_back(std::move(out).take());
  }

  /// Throws unless all was written.
  void send(rpcrdma::Client& client, const Caller& caller) {
    XdrWriter header;
    encode_call(header, {client.next_xid(), kNfsProgram, kNfs4Version, 1, caller});
    std::vector<rpcrdma_piece> pieces = {rpcrdma::piece(header.bytes())};
    for (size_t i = 0; i < items_.size(); ++i) {
      pieces.push_back(rpcrdma::piece(texts_[i]));
      pieces.push_back(rpcrdma::ddp_piece(items_[i]));
    }
    pieces.push_back(rpcrdma::piece(texts_.back()));
    std::vector<std::byte> room(4096);
    rpcrdma_call call{};
    call.pieces = pieces.data();
    call.piece_count = static_cast<unsigned>(pieces.size());
    call.flags = RPCRDMA_CALL_CHUNKS;
    call.reply = room.data();
    call.reply_size = room.size();
    client.call(call);
    XdrReader in(ConstBytes(room).first(call.reply_length));
    decode_reply(in, XdrReader(header.bytes()).u32());
    check(in);
  }

 private:
  void check(XdrReader& in) const {
    CompoundReply reply(in);
    reply.results_of(Nfs4Operation::kPutfh);
    for (const auto& item : items_) {
      XdrReader& result = reply.results_of(Nfs4Operation::kWrite);
      if (uint32_t count = result.u32(); count != item.size()) {
        throw RpcError("written: " + std::to_string(count) + " of " + std::to_string(item.size()));
      }
      result.fixed_opaque(12);  // stability and verifier
    }
    reply.results_of(Nfs4Operation::kGetfh);
  }

  std::vector<std::vector<std::byte>> items_;
  std::vector<std::vector<std::byte>> texts_;
};

void run(const std::string& url_text, const std::vector<size_t>& lengths) {
  Url url = Url::parse(url_text);
  SessionOptions options;
  options.version = kNfs4Version;
  Session session(url, options);
  Place place = session.tree().place_of(url.path);
  OpenFile file =
      session.client().create(place.directory, place.name, CreateHow::kGuarded, NewAttributes{});
  rpcrdma::Client client(url.host, url.port);
  SeveralWrites(file, lengths).send(client, options.caller);
  printf("Read chunks %" PRIu64 "\n", client.statistics().read_chunks);
  session.client().close(file);
}

}  // namespace
}  // namespace uwarp::nfs

int main(int argc, char** argv) {
  if (argc < 3) {
    fputs("usage: several_writes URL LENGTH...\n", stderr);
    return 2;
  }
  try {
    std::vector<size_t> lengths;
    for (int i = 2; i < argc; ++i) {
      lengths.push_back(std::strtoul(argv[i], nullptr, 10));
    }
    uwarp::nfs::run(argv[1], lengths);
    return 0;
  } catch (const std::exception& error) {
    fprintf(stderr, "several_writes: %s\n", error.what());
    return 1;
  }
}
