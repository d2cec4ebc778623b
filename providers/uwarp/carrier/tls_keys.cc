// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/tls_keys.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/profile_file.h"
#include "os/raw_call.h"

namespace uwarp {

namespace {

constexpr size_t kFileBytesMax = size_t{256} << 10;
constexpr char kModule[] = "libuwarp-tls.so";

/// Wiped at its end.
struct Secret : std::string {
  ~Secret() { explicit_bzero(data(), size()); }
};

/// What is wrong with the rights of a file of keys; null: nothing.
const char* wrong_rights(const struct stat& status) {
  if (status.st_uid != geteuid()) return "belongs to another user than this process";
  const bool open = (status.st_mode & (S_IRWXG | S_IRWXO)) != 0;
  return open ? "may be read or written by others than its owner: chmod 600" : nullptr;
}

struct OpenFile {
  explicit OpenFile(const std::string& path)
      : fd(static_cast<int>(raw_call(SYS_openat, AT_FDCWD, path.c_str(),
                                     O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY))) {}
  ~OpenFile() {
    if (fd >= 0) (void)raw_call(SYS_close, fd);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  const int fd;  // or a negative errno
};

/// Reads a file of keys (`secret`: it must be of this user and closed to all others) or of
/// certificates. Returns what is wrong, with the name of the `setting`, or an empty text.
std::string read_file(const char* setting, const std::string& path, bool secret,
                      std::string& text) {
  const std::string which = std::string(setting) + ": " + path + ": ";
  if (path.empty()) return std::string(setting) + " is not set";
  const OpenFile file(path);
  if (file.fd < 0) return which + std::strerror(-file.fd);
  struct stat status {};
  if (const int error = raw_status(SYS_newfstatat, file.fd, "", &status, AT_EMPTY_PATH))
    return which + std::strerror(error);
  if (!S_ISREG(status.st_mode)) return which + "no regular file";
  const char* const rights = secret ? wrong_rights(status) : nullptr;
  if (rights != nullptr) return which + rights;
  text.resize(kFileBytesMax + 1);  // once, so that no copy of a key stays behind
  const ssize_t count = raw_call(SYS_read, file.fd, text.data(), text.size());
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (count < 0) return which + std::strerror(static_cast<int>(-count));
  return text.size() > kFileBytesMax ? which + "too long" : std::string();
}

}  // namespace

int refuse_unprotected(const char* what) {
  if (settings().tls == TlsMode::kOff) return 0;
  advise(std::string(what) + " cannot be protected and is refused while UWARP_TLS is on");
  return EPROTONOSUPPORT;
}

TlsKeys TlsKeys::take(const Settings& settings) {
  TlsKeys keys;
  keys.wanted_ = settings.tls != TlsMode::kOff;
  if (keys.wanted_) keys.error_ = keys.open(settings);
  return keys;
}

std::unique_ptr<TlsStream> TlsKeys::protect(TcpSocket& socket, bool active) const {
  std::unique_ptr<TlsSession> session = context_->begin(active);
  if (session == nullptr) return nullptr;
  return std::unique_ptr<TlsStream>(new (std::nothrow) TlsStream(socket, std::move(session)));
}

namespace {

/// Beside the engine or the program that asks, in the folder of libraries, or where the linker
/// looks.
void* load_library() {
  const std::string own = own_library_folder();
  for (const std::string& folder :
       {own + "/", own + "/../lib/", std::string(UWARP_INSTALL_LIBDIR "/"), std::string()})
    if (void* const library = dlopen((folder + kModule).c_str(), RTLD_NOW | RTLD_LOCAL))
      return library;
  return nullptr;
}

const TlsModule* load_module(std::string& error) {
  void* const library = load_library();
  if (library == nullptr) {
    const char* const why = dlerror();
    error = std::string("UWARP_TLS needs libuwarp-tls.so and OpenSSL 3: ") +
            (why != nullptr ? why : "not found");
    return nullptr;
  }
  const auto* const module = static_cast<const TlsModule*>(dlsym(library, "uwarp_tls"));
  if (module != nullptr && std::strcmp(module->version, UWARP_VERSION) == 0) return module;
  error = std::string(kModule) + " is of another version of uwarp";
  return nullptr;
}

}  // namespace

std::string TlsKeys::open(const Settings& settings) {
  if (settings.tls == TlsMode::kNotUnderstood) return "UWARP_TLS is not off, psk or cert";
  Secret psk, key;
  std::string certificate, authorities, error;
  const bool by_certificate = settings.tls == TlsMode::kCert;
  if (!by_certificate) {
    error = read_file("UWARP_TLS_PSK", settings.tls_psk, true, psk);
  } else {
    error = read_file("UWARP_TLS_CERT", settings.tls_cert, false, certificate);
    if (error.empty()) error = read_file("UWARP_TLS_KEY", settings.tls_key, true, key);
    if (error.empty()) error = read_file("UWARP_TLS_CA", settings.tls_ca, false, authorities);
  }
  if (!error.empty()) return error;
  const TlsModule* const module = load_module(error);
  if (module == nullptr) return error;
  library_ = module->library();
  context_ = module->open({by_certificate, psk, certificate, key, authorities}, error);
  return error;
}

}  // namespace uwarp
