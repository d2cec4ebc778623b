// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// MOUNT over TCP with libtirpc, for servers whose mountd does not listen on RDMA.
#include <netdb.h>
#include <rpc/rpc.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "nfs/mount_client.h"

namespace uwarp::nfs {

namespace {

constexpr timeval kTimeLimit = {20, 0};
constexpr unsigned kExportGroupsMax = 65536;  // of all exports
constexpr unsigned kFlavorsMax = 64;

struct MountResult {
  uint32_t status = 0;
  FileHandle root;
};

bool decode_handle_bytes(XDR* xdr, FileHandle& handle) {
  u_int length = 0;
  if (!xdr_u_int(xdr, &length) || length > kFileHandleBytesMax) {
    return false;
  }
  handle.resize(length);
  return xdr_opaque(xdr, reinterpret_cast<char*>(handle.data()), length);
}

bool_t decode_mount_result_tirpc(XDR* xdr, MountResult* result) {
  u_int flavors = 0;
  if (!xdr_uint32_t(xdr, &result->status)) {
    return FALSE;
  }
  if (result->status != 0) {
    return TRUE;
  }
  if (!decode_handle_bytes(xdr, result->root) || !xdr_u_int(xdr, &flavors) ||
      flavors > kFlavorsMax) {
    return FALSE;
  }
  for (u_int i = 0, flavor = 0; i < flavors; ++i) {
    if (!xdr_u_int(xdr, &flavor)) {
      return FALSE;
    }
  }
  return TRUE;
}

bool decode_text(XDR* xdr, std::string& text, u_int limit) {
  char* made = nullptr;
  bool read = xdr_string(xdr, &made, limit);
  if (made != nullptr) {
    text = made;
    free(made);
  }
  return read;
}

bool decode_flag(XDR* xdr, bool_t& flag) { return xdr_bool(xdr, &flag); }

bool_t decode_exports_tirpc(XDR* xdr, std::vector<ExportEntry>* exports) {
  bool_t more = FALSE;
  unsigned groups = 0;
  while (decode_flag(xdr, more)) {
    if (!more) {
      return TRUE;
    }
    ExportEntry entry;
    if (exports->size() == kExportsMax || !decode_text(xdr, entry.path, kPathBytesMax)) {
      return FALSE;
    }
    bool_t more_groups = FALSE;
    while (decode_flag(xdr, more_groups) && more_groups) {
      std::string group;
      if (groups++ == kExportGroupsMax || !decode_text(xdr, group, kNameBytesMax)) {
        return FALSE;
      }
      entry.groups.push_back(std::move(group));
    }
    exports->push_back(std::move(entry));
  }
  return FALSE;
}

bool_t encode_path_tirpc(XDR* xdr, char** path) { return xdr_string(xdr, path, kPathBytesMax); }

bool_t nothing(XDR*, void*) { return TRUE; }

struct DestroyClient {
  void operator()(CLIENT* client) const {
    if (client->cl_auth != nullptr) {
      auth_destroy(client->cl_auth);
    }
    clnt_destroy(client);
  }
};
using ClientOwner = std::unique_ptr<CLIENT, DestroyClient>;

class TcpMountClient : public MountClient {
 public:
  TcpMountClient(ClientOwner client, int socket) : socket_(socket), client_(std::move(client)) {}
  ~TcpMountClient() override {
    client_.reset();
    if (socket_ >= 0) {
      close(socket_);
    }
  }

  std::vector<ExportEntry> exports() override {
    std::vector<ExportEntry> exports;
    call(MountProcedure::kExport, reinterpret_cast<xdrproc_t>(nothing), nullptr,
         reinterpret_cast<xdrproc_t>(decode_exports_tirpc), &exports);
    return exports;
  }

  FileHandle mount(const std::string& path) override {
    MountResult result;
    char* argument = const_cast<char*>(path.c_str());
    call(MountProcedure::kMount, reinterpret_cast<xdrproc_t>(encode_path_tirpc), &argument,
         reinterpret_cast<xdrproc_t>(decode_mount_result_tirpc), &result);
    if (result.status != 0) {
      throw NfsError(static_cast<NfsStatus>(result.status));
    }
    return result.root;
  }

 private:
  void call(MountProcedure procedure, xdrproc_t encode, void* arguments, xdrproc_t decode,
            void* results) {
    clnt_stat status =
        clnt_call(client_.get(), static_cast<rpcproc_t>(procedure), encode,
                  static_cast<char*>(arguments), decode, static_cast<char*>(results), kTimeLimit);
    if (status != RPC_SUCCESS) {
      throw RpcError(std::string("MOUNT over TCP: ") + clnt_sperrno(status));
    }
  }

  int socket_;
  ClientOwner client_;
};

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};

std::unique_ptr<MountClient> connect_to_port(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    throw RpcError("unknown host");
  }
  std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  for (addrinfo* each = found; each != nullptr; each = each->ai_next) {
    int made = socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol);
    if (made < 0) {
      continue;
    }
    bindresvport_sa(made, nullptr);  // mountd may want a privileged port; without the right, no
    netbuf address{};
    address.buf = each->ai_addr;
    address.len = address.maxlen = each->ai_addrlen;
    if (connect(made, each->ai_addr, each->ai_addrlen) == 0) {
      ClientOwner client(clnt_vc_create(made, &address, kMountProgram, kMountVersion, 0, 0));
      if (client) {
        return std::make_unique<TcpMountClient>(std::move(client), made);
      }
    }
    close(made);
  }
  throw RpcError("no connection to mountd on TCP port " + std::to_string(port));
}

std::unique_ptr<MountClient> connect_by_rpcbind(const std::string& host) {
  ClientOwner client(
      clnt_create_timed(host.c_str(), kMountProgram, kMountVersion, "tcp", &kTimeLimit));
  if (!client) {
    throw RpcError(clnt_spcreateerror("the server does not answer MOUNT over RDMA, and over TCP"));
  }
  return std::make_unique<TcpMountClient>(std::move(client), -1);
}

}  // namespace

std::unique_ptr<MountClient> make_tcp_mount_client(const std::string& host,
                                                   std::optional<uint16_t> port) {
  return port ? connect_to_port(host, *port) : connect_by_rpcbind(host);
}

}  // namespace uwarp::nfs
