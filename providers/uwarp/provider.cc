// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The plugin that libibverbs loads: registers the driver, recognises our devices, and lays the
// operations of libuwarp.so out as the library that is running expects them. One binary serves all
// layouts of kernel-abi/provider_abi.h. Holds no verbs logic.

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/c_boundary.h"
#include "kernel-abi/provider_abi.h"
#include "verbs/verbs_table.h"

namespace {

using namespace uwarp::provider_abi;

constexpr char kDevicePrefix[] = "uwarp_";
// Written into each device directory of our tree, so that a foreign "uwarp_..." is not taken.
constexpr char kMarkerFile[] = "uwarp";

// The verbs_context stands at the start of this much memory, and our tail right behind it.
constexpr size_t kBlockBytes = 4096;
static_assert(context_size(Family::kV64) + sizeof(uwarp_context_tail) < kBlockBytes / 2);

struct Library {
  RegisterDriver register_driver = nullptr;
  InitAndAllocContext init_and_alloc_context = nullptr;
  SetOps set_ops = nullptr;
  UninitContext uninit_context = nullptr;
};
Library library;

void* find_symbol(const char* name) {
  if (void* symbol = dlsym(RTLD_DEFAULT, name)) return symbol;
  // The application may have loaded libibverbs into a private scope (Python extensions do).
  static void* const handle = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return handle != nullptr ? dlsym(handle, name) : nullptr;
}

template <typename Function>
bool bind_symbol(Function& function, const char* name) {
  function = reinterpret_cast<Function>(find_symbol(name));
  return function != nullptr;
}

// ---- Layout of the running library --------------------------------------------------------------

/// What a context turned out to be.
struct Layout {
  Family family;
  ibv_context* context;
};

/// The newest family whose sizeof(verbs_context) is `size`; the library writes its own into the
/// word before the ibv_context.
bool family_of_size(size_t size, Family& family) {
  for (Family candidate : {Family::kV64, Family::kV62, Family::kV59, Family::kV36}) {
    if (context_size(candidate) == size) return family = candidate, true;
  }
  return false;
}

/// Finds the ibv_context in a block that the library has just initialised: it starts with the
/// device pointer, holds cmd_fd at a fixed place, and follows the size of a family we know.
bool locate_context(void* block, const ibv_device* device, int cmd_fd, Layout& layout) {
  char* bytes = static_cast<char*>(block);
  for (size_t offset = sizeof(size_t); offset + sizeof(ibv_context) <= kBlockBytes;
       offset += sizeof(void*)) {
    ibv_context* context = reinterpret_cast<ibv_context*>(bytes + offset);
    if (context->device != device || context->cmd_fd != cmd_fd) continue;
    size_t size;
    memcpy(&size, bytes + offset - sizeof size, sizeof size);
    if (!family_of_size(size, layout.family) || context_offset(layout.family) != offset) continue;
    layout.context = context;
    return true;
  }
  return false;
}

/// Stands in a slot that a probe may have written although nothing of ours belongs there.
int unsupported() { return EOPNOTSUPP; }

/// Makes sure of the family by setting one operation and looking where it arrives in the public
/// part. Releases that share a context size are told apart so, and an unknown layout is noticed
/// before it does harm. False: the library's table is none that we know.
bool confirm_family(void* block, AnyFunction marker, Layout& layout) {
  constexpr Family kSameSize[] = {Family::kV36, Family::kV35, Family::kV34};
  const bool ambiguous = layout.family == Family::kV36;
  for (Family candidate : kSameSize) {
    if (!ambiguous) candidate = layout.family;
    OperationTable probe = {};
    probe.slots[slot_of(candidate, "req_notify_cq")] = marker;
    library.set_ops(block, &probe);
    if (reinterpret_cast<AnyFunction>(layout.context->ops.req_notify_cq) == marker) {
      layout.family = candidate;
      return true;
    }
    if (!ambiguous) return false;
  }
  return false;
}

/// The operations in the order of `family`.
OperationTable lay_out(Family family, const uwarp_verbs_table& verbs, AnyFunction free_context) {
  OperationTable table = {};
  // Slots that confirm_family() may have hit in the older tables; rereg_mr is one of ours.
  table.slots[slot_of(family, "resize_cq")] = reinterpret_cast<AnyFunction>(unsupported);
#define PLACE(name, result, parameters)                   \
  static_assert(slot_of(Family::kV64, #name) >= 0);       \
  if (const int slot = slot_of(family, #name); slot >= 0) \
    table.slots[slot] = reinterpret_cast<AnyFunction>(verbs.name);
  UWARP_VERBS_OPERATIONS(PLACE)
#undef PLACE
  table.slots[slot_of(family, "free_context")] = free_context;
  return table;
}

// ---- Driver -------------------------------------------------------------------------------------

bool match_device(void* sysfs_device) {
  const char* name = static_cast<const char*>(sysfs_device) + kSysfsIbdevName;
  if (strncmp(name, kDevicePrefix, sizeof kDevicePrefix - 1) != 0) return false;
  const char* directory = static_cast<const char*>(sysfs_device) + kSysfsIbdevPath;
  char marker[256 + sizeof kMarkerFile + 1];
  snprintf(marker, sizeof marker, "%s/%s", directory, kMarkerFile);
  return access(marker, F_OK) == 0;
}

void* alloc_device(void*) {
  char* device = static_cast<char*>(calloc(1, kDeviceSize));
  if (device != nullptr)
    memcpy(device + kDeviceCoreSupport, &kCoreSupportOptionalMrAccess, sizeof(uint64_t));
  return device;
}

void free_context(ibv_context* context) {
  size_t size;
  memcpy(&size, reinterpret_cast<char*>(context) - sizeof size, sizeof size);
  void* block = reinterpret_cast<char*>(context) + sizeof(ibv_context) - size;
  uwarp_verbs()->close_context(context);
  library.uninit_context(block);
  free(block);
}

/// Gives a context back that was never shown to the application.
void* give_up(void* block, int error, const char* reason) {
  if (reason != nullptr) uwarp_verbs()->log(reason);
  library.uninit_context(block);
  free(block);
  errno = error;
  return nullptr;
}

/// A block that the library has initialised, or null and errno. It makes a system call that fails,
/// to learn which kernel this is.
void* init_context(ibv_device* device, int cmd_fd) {
  uwarp::ErrnoGuard kept;
  void* block = library.init_and_alloc_context(device, cmd_fd, kBlockBytes, nullptr, 0);
  if (block == nullptr) kept.failed(errno);
  return block;
}

void* alloc_context(ibv_device* device, int cmd_fd, void*) {
  const uwarp_verbs_table& verbs = *uwarp_verbs();
  void* block = init_context(device, cmd_fd);
  if (block == nullptr) return nullptr;
  Layout layout = {};
  if (verbs.version != UWARP_VERBS_TABLE_VERSION)
    return give_up(block, ENOSYS, "plugin and libuwarp.so are of different versions");
  if (!locate_context(block, device, cmd_fd, layout) ||
      !confirm_family(block, reinterpret_cast<AnyFunction>(verbs.req_notify_cq), layout))
    return give_up(block, ENOSYS, "this libibverbs has a provider interface that is not known");
  const OperationTable table =
      lay_out(layout.family, verbs, reinterpret_cast<AnyFunction>(free_context));
  library.set_ops(block, &table);
  if (int error = verbs.open_context(layout.context)) return give_up(block, error, nullptr);
  return block;
}

constexpr DeviceOperations kDriver = {
    .name = "uwarp",
    .match_min_abi_version = 1,
    .match_max_abi_version = 1,
    .match_table = nullptr,
    .static_providers = nullptr,
    .match_device = match_device,
    .alloc_context = alloc_context,
    .import_context = nullptr,
    .alloc_device = alloc_device,
    .uninit_device = free,
};

/// Else the program finds no device, and not a word why.
void say_that_library_is_unknown() {
  const char* const log = getenv("UWARP_LOG");
  if (log != nullptr && strcmp(log, "0") == 0) return;
  fputs(
      "uwarp: this libibverbs has no interface for plugins that uwarp knows, so it shows no "
      "device of uwarp. Use a release of rdma-core from 34 on, or a newer uwarp; uwarp-doctor "
      "names the library (UWARP_LOG=0 hides this line)\n",
      stderr);
}

[[gnu::constructor]] void register_driver() {
  if (!bind_symbol(library.init_and_alloc_context, kInitAndAllocContextName) ||
      !bind_symbol(library.set_ops, kSetOpsName) ||
      !bind_symbol(library.uninit_context, kUninitContextName))
    return say_that_library_is_unknown();
  for (const char* name : kRegisterDriverNames) {
    if (bind_symbol(library.register_driver, name)) return library.register_driver(&kDriver);
  }
  say_that_library_is_unknown();
}

}  // namespace
