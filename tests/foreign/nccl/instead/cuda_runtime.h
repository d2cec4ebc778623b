// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What NCCL's net_ib and what it is built with ask of CUDA's headers: memory of a GPU is memory of
// the host here, and there is one GPU, 0. As old a CUDA as NCCL still takes, which has the fewest
// functions.
#pragma once
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define CUDART_VERSION 11000

using cudaError_t = int;
enum { cudaSuccess = 0 };
using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using CUmemAllocationHandleType = int;
struct cudaIpcMemHandle_t {
  char bytes[64];
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed };
enum { cudaHostAllocMapped, cudaHostRegisterPortable, cudaHostRegisterMapped };
enum { cudaStreamNonBlocking };
enum { cudaMemcpyDefault };
enum { cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor };

// NCCL's cudawrap.h is left out.
constexpr CUmemAllocationHandleType ncclCuMemHandleType = 0;
int ncclCuMemEnable();

inline const char* cudaGetErrorString(cudaError_t) { return "there is no CUDA here"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) {
  *value = 0;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int) {
  if (size > 0) *id = 0;
  return cudaSuccess;
}

template <class T>
cudaError_t cudaMalloc(T** memory, size_t size) {
  *memory = static_cast<T*>(malloc(size));
  return *memory ? cudaSuccess : cudaError_t{2};
}

template <class T>
cudaError_t cudaHostAlloc(T** memory, size_t size, int) {
  return cudaMalloc(memory, size);
}

inline cudaError_t cudaFree(void* memory) {
  free(memory);
  return cudaSuccess;
}

inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaHostRegister(void*, size_t, int) { return cudaSuccess; }
inline cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }

inline cudaError_t cudaHostGetDevicePointer(void** device, void* host, int) {
  *device = host;
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* memory, int byte, size_t size, cudaStream_t) {
  memset(memory, byte, size);
  return cudaSuccess;
}

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, int, cudaStream_t) {
  memmove(to, from, size);
  return cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, int) {
  *stream = nullptr;
  return cudaSuccess;
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
