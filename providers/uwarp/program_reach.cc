// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "program_reach.h"

#include <elf.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace uwarp {
namespace {

/// Far more than programs have. A file may claim any number.
constexpr size_t kMaxSegments = 256;
constexpr size_t kMaxInterpreter = 4096;

template <typename Type>
bool read_at(std::ifstream& file, uint64_t offset, Type& value) {
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(&value), sizeof value);
  return file.good();
}

/// What the kernel loads to start the program. Empty: it starts the program itself.
std::string interpreter_of(std::ifstream& file, const Elf64_Ehdr& header) {
  for (size_t index = 0; index < header.e_phnum && index < kMaxSegments; ++index) {
    Elf64_Phdr segment{};
    if (!read_at(file, header.e_phoff + index * sizeof segment, segment)) break;
    if (segment.p_type != PT_INTERP || segment.p_filesz > kMaxInterpreter) continue;
    std::string path(segment.p_filesz, '\0');
    file.seekg(static_cast<std::streamoff>(segment.p_offset));
    file.read(path.data(), static_cast<std::streamsize>(path.size()));
    return path.c_str();
  }
  return {};
}

/// The dynamic linker has no interpreter, and preloads into the program that it is given.
bool is_dynamic_linker(const std::string& path) {
  return path.substr(path.rfind('/') + 1).starts_with("ld-");
}

Unreached judge_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<unsigned char, EI_NIDENT> ident{};
  if (!read_at(file, 0, ident) || std::memcmp(ident.data(), ELFMAG, SELFMAG) != 0) return {};
  if (ident[EI_CLASS] != ELFCLASS64)
    return {"is a program of 32 bits, and uwarp is a library of 64 bits",
            "Use a build of the program for 64 bits"};
  Elf64_Ehdr header{};
  if (!read_at(file, 0, header) || header.e_phentsize != sizeof(Elf64_Phdr)) return {};
  const std::string interpreter = interpreter_of(file, header);
  if (interpreter.find("musl") != std::string::npos)
    return {"uses musl (" + interpreter + "), and uwarp is a library for glibc",
            "Use a build of the program for glibc, such as that of Debian, Ubuntu or Fedora"};
  if (interpreter.empty() && !is_dynamic_linker(path))
    return {"is a static program, into which no library can be preloaded",
            "Link it dynamically with libibverbs; build Go programs with CGO_ENABLED=1"};
  return {};
}

/// Whether it has more rights than the user. The dynamic linker then takes no LD_PRELOAD with a
/// slash. Without rights to gain (no_new_privs, mounted nosuid) the kernel leaves the bits unread.
bool gains_rights(const std::string& path) {
  struct stat file {};
  struct statvfs mounted {};
  if (stat(path.c_str(), &file) != 0 || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ||
      (statvfs(path.c_str(), &mounted) == 0 && (mounted.f_flag & ST_NOSUID) != 0))
    return false;
  const bool by_user = (file.st_mode & S_ISUID) != 0 && file.st_uid != getuid();
  const bool by_group =
      (file.st_mode & S_ISGID) != 0 && (file.st_mode & S_IXGRP) != 0 && file.st_gid != getgid();
  const bool by_capability =
      getuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
  return by_user || by_group || by_capability;
}

bool is_program(const std::string& path) {
  struct stat file {};
  return access(path.c_str(), X_OK) == 0 && stat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode);
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
  const char* const variable = std::getenv("PATH");
  const std::string folders = variable != nullptr ? variable : "/bin:/usr/bin";
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string folder = folders.substr(begin, end - begin);
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (is_program(path)) return path;
    begin = end + 1;
  }
  return {};
}

Unreached why_unreached(const std::string& path) {
  if (gains_rights(path))
    return {
        "gets more rights than its user (setuid, setgid or capabilities), so the dynamic linker "
        "ignores LD_PRELOAD",
        "Put uwarp-run behind it (sudo uwarp-run PROGRAM), or run a copy without these bits"};
  return judge_file(path);
}

}  // namespace uwarp
