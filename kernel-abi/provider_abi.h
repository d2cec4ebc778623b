// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The private interface between libibverbs and its provider plugins, as far as a provider without a
// kernel needs it. It is internal to rdma-core (no installed header), changes between releases,
// once even without a new number, and is therefore declared here by offset, per family. Sources:
// names and order of the operations from libibverbs/driver.h of rdma-core v34 to v64; sizes and
// offsets from the debug information of builds of these releases (LP64, little-endian).
#pragma once

#include <infiniband/verbs.h>
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace uwarp::provider_abi {

/// Layouts that differ in what a provider sees, named for the first release that has them.
///
/// | family | releases | plug-in number | operations | sizeof(verbs_context) |
/// | --- | --- | --- | --- | --- |
/// | kV34 | v34 | 34 | 73 | 648 |
/// | kV35 | v35 | 34 | 75 | 648 |
/// | kV36 | v36 to v56, v57 to v58 | 34, 57 | 76 | 648 |
/// | kV59 | v59 to v61 | 59 | 79 | 672 |
/// | kV62 | v62 to v63 | 59 | 81 | 680 |
/// | kV64 | v64 | 64 | 83 | 696 |
enum class Family : uint8_t { kV34, kV35, kV36, kV59, kV62, kV64 };
inline constexpr int kFamilyCount = 6;

/// One slot of verbs_context_ops and the family that introduced it. The table is alphabetical and
/// only ever grew, so a slot's place in a family is the number of older slots before it.
struct Operation {
  std::string_view name;
  Family since = Family::kV34;
};

inline constexpr Operation kOperations[] = {
    {"advise_mr"},
    {"alloc_buf", Family::kV64},
    {"alloc_dm"},
    {"alloc_dmah", Family::kV59},
    {"alloc_mw"},
    {"alloc_null_mr"},
    {"alloc_parent_domain"},
    {"alloc_pd"},
    {"alloc_td"},
    {"async_event"},
    {"attach_counters_point_flow"},
    {"attach_mcast"},
    {"bind_mw"},
    {"close_xrcd"},
    {"cq_event"},
    {"create_ah"},
    {"create_counters"},
    {"create_cq"},
    {"create_cq_ex"},
    {"create_flow"},
    {"create_flow_action_esp"},
    {"create_qp"},
    {"create_qp_ex"},
    {"create_rwq_ind_table"},
    {"create_srq"},
    {"create_srq_ex"},
    {"create_wq"},
    {"dealloc_dmah", Family::kV59},
    {"dealloc_mw"},
    {"dealloc_pd"},
    {"dealloc_td"},
    {"dereg_mr"},
    {"destroy_ah"},
    {"destroy_counters"},
    {"destroy_cq"},
    {"destroy_flow"},
    {"destroy_flow_action"},
    {"destroy_qp"},
    {"destroy_rwq_ind_table"},
    {"destroy_srq"},
    {"destroy_wq"},
    {"detach_mcast"},
    {"dm_export_dmabuf_fd", Family::kV62},
    {"free_buf", Family::kV64},
    {"free_context"},
    {"free_dm"},
    {"get_srq_num"},
    {"import_dm", Family::kV35},
    {"import_mr"},
    {"import_pd"},
    {"modify_cq"},
    {"modify_flow_action_esp"},
    {"modify_qp"},
    {"modify_qp_rate_limit"},
    {"modify_srq"},
    {"modify_wq"},
    {"open_qp"},
    {"open_xrcd"},
    {"poll_cq"},
    {"post_recv"},
    {"post_send"},
    {"post_srq_ops"},
    {"post_srq_recv"},
    {"query_device_ex"},
    {"query_ece"},
    {"query_port"},
    {"query_port_speed", Family::kV62},
    {"query_qp"},
    {"query_qp_data_in_order", Family::kV36},
    {"query_rt_values"},
    {"query_srq"},
    {"read_counters"},
    {"reg_dm_mr"},
    {"reg_dmabuf_mr"},
    {"reg_mr"},
    {"reg_mr_ex", Family::kV59},
    {"req_notify_cq"},
    {"rereg_mr"},
    {"resize_cq"},
    {"set_ece"},
    {"unimport_dm", Family::kV35},
    {"unimport_mr"},
    {"unimport_pd"},
};

/// Number of slots in a family's table.
constexpr int slot_count(Family family) {
  int count = 0;
  for (const Operation& operation : kOperations) count += operation.since <= family;
  return count;
}

/// Index of an operation in a family's table, -1 if the family does not have it.
constexpr int slot_of(Family family, std::string_view name) {
  int slot = 0;
  for (const Operation& operation : kOperations) {
    if (operation.name == name) return operation.since <= family ? slot : -1;
    slot += operation.since <= family;
  }
  return -1;
}

inline constexpr int kMaxSlots = 83;
static_assert(slot_count(Family::kV34) == 73);
static_assert(slot_count(Family::kV35) == 75);
static_assert(slot_count(Family::kV36) == 76);
static_assert(slot_count(Family::kV59) == 79);
static_assert(slot_count(Family::kV62) == 81);
static_assert(slot_count(Family::kV64) == kMaxSlots);
static_assert(slot_of(Family::kV36, "free_context") == 39);
static_assert(slot_of(Family::kV36, "poll_cq") == 53);
static_assert(slot_of(Family::kV36, "unimport_pd") == 75);
static_assert(slot_of(Family::kV59, "alloc_dmah") == 2);
static_assert(slot_of(Family::kV59, "dealloc_dmah") == 26);
static_assert(slot_of(Family::kV59, "reg_mr_ex") == 71);
static_assert(slot_of(Family::kV62, "dm_export_dmabuf_fd") == 41);
static_assert(slot_of(Family::kV62, "query_port_speed") == 64);
static_assert(slot_of(Family::kV62, "reg_mr_ex") == 73);
static_assert(slot_of(Family::kV64, "alloc_buf") == 1);
static_assert(slot_of(Family::kV64, "free_buf") == 43);
static_assert(slot_of(Family::kV64, "reg_mr_ex") == 75);

/// verbs_context_ops: an array of function pointers whose meaning the family decides. Room for the
/// largest, so that a library never reads behind it.
using AnyFunction = void (*)();
struct OperationTable {
  AnyFunction slots[kMaxSlots + 13];  // 768 bytes; the largest family takes 664
};

// ---- verbs_context ------------------------------------------------------------------------------

/// Where verbs_context has its ibv_context, by family. That is its last member in every release,
/// the struct grows at its front, and pointers are all that lies there.
constexpr size_t context_offset(Family family) {
  switch (family) {
    case Family::kV59:
      return 344;
    case Family::kV62:
      return 352;
    case Family::kV64:
      return 368;
    default:
      return 320;
  }
}
/// sizeof(verbs_context); the library writes its own into the word before ibv_context. On arm64 the
/// mutex in ibv_context makes it larger.
constexpr size_t context_size(Family family) {
  return context_offset(family) + sizeof(ibv_context);
}
static_assert(offsetof(ibv_context, cmd_fd) == 264);
static_assert(sizeof(ibv_context) == 288 + sizeof(pthread_mutex_t));
static_assert(offsetof(ibv_context, async_fd) == 268);

// ---- verbs_device and what enumeration hands over -----------------------------------------------

/// Fields of verbs_sysfs_dev that a provider looks at (same offsets from v34 on).
inline constexpr size_t kSysfsIbdevName = 112;  // char[64]
inline constexpr size_t kSysfsIbdevPath = 176;  // char[256]

/// verbs_device: ibv_device, then the library's own members. Same from v34 to v64.
inline constexpr size_t kDeviceSize = 712;
inline constexpr size_t kDeviceCoreSupport = 704;  // uint64_t
/// core_support: access flags of the optional range are passed on to reg_mr.
inline constexpr uint64_t kCoreSupportOptionalMrAccess = 1;
static_assert(sizeof(ibv_device) == 664);

/// verbs_device_ops, what a plug-in registers. Same from v34 to v64.
struct DeviceOperations {
  const char* name;
  uint32_t match_min_abi_version;
  uint32_t match_max_abi_version;
  const void* match_table;
  const void* static_providers;
  bool (*match_device)(void* sysfs_device);
  void* (*alloc_context)(ibv_device* device, int cmd_fd, void* private_data);
  void* (*import_context)(ibv_device* device, int cmd_fd);
  void* (*alloc_device)(void* sysfs_device);
  void (*uninit_device)(void* verbs_device);
};
static_assert(sizeof(DeviceOperations) == 72);
static_assert(offsetof(DeviceOperations, match_device) == 32);
static_assert(offsetof(DeviceOperations, uninit_device) == 64);

// ---- Functions that libibverbs exports to plug-ins ----------------------------------------------
// Bound with dlsym: their version node carries the plug-in number, so a plug-in that is linked
// against one family could not be loaded by another.

using RegisterDriver = void (*)(const DeviceOperations* operations);
inline constexpr const char* kRegisterDriverNames[] = {
    "verbs_register_driver_34", "verbs_register_driver_57", "verbs_register_driver_59",
    "verbs_register_driver_64"};

/// Returns zeroed memory of `size` bytes with the verbs_context at `context_offset`, or null; then
/// cmd_fd is closed.
using InitAndAllocContext = void* (*)(ibv_device* device, int cmd_fd, size_t size,
                                      void* context_offset, uint32_t driver_id);
inline constexpr const char* kInitAndAllocContextName = "_verbs_init_and_alloc_context";
/// Copies all slots that are not null.
using SetOps = void (*)(void* verbs_context, const void* operations);
inline constexpr const char* kSetOpsName = "verbs_set_ops";
/// Closes cmd_fd and async_fd, drops the device reference, frees the library's part.
using UninitContext = void (*)(void* verbs_context);
inline constexpr const char* kUninitContextName = "verbs_uninit_context";

}  // namespace uwarp::provider_abi
