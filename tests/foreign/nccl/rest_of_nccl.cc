// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The few functions of NCCL that net_ib needs and whose sources would bring CUDA with them.
// Settings come from the environment and nccl.conf, as they do without a plugin for them.
#include <cstdlib>

#include "nccl.h"

void initEnv();

void ncclInitEnv() { initEnv(); }
const char* ncclEnvPluginGetEnv(const char* name) { return std::getenv(name); }
extern "C" const char* ncclParamEnvPluginGet(const char* name, bool) { return std::getenv(name); }
extern "C" bool ncclParamIsCacheDisabled(const char*) { return false; }
int64_t ncclParamSetCpuStackSize() { return 0; }
int ncclCuMemEnable() { return 0; }

// net_ib asks by these whether the kernel has a module for memory of GPUs. With STAND_IN_PEERMEM
// set there is one, so that receives are flushed by a Read from the queue pair's own side, of
// memory of the host.
ncclResult_t __real__Z16ncclIbGdrSupportv() asm("__real__Z16ncclIbGdrSupportv");
ncclResult_t __wrap__Z16ncclIbGdrSupportv() asm("__wrap__Z16ncclIbGdrSupportv");

ncclResult_t __wrap__Z16ncclIbGdrSupportv() {
  return std::getenv("STAND_IN_PEERMEM") ? ncclSuccess : __real__Z16ncclIbGdrSupportv();
}
