# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# What uwarp runs on: amd64 and arm64, little-endian, Linux with glibc. The layouts of the private
# provider ABI and the in-place byte order of the wire code hold for these only, so everything else
# is refused here instead of failing strangely later.

include(CheckCXXSourceCompiles)

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "uwarp runs on Linux only (this is ${CMAKE_SYSTEM_NAME})")
endif()

if(CMAKE_CXX_BYTE_ORDER AND NOT CMAKE_CXX_BYTE_ORDER STREQUAL "LITTLE_ENDIAN")
  message(FATAL_ERROR "uwarp supports little-endian machines only")
endif()

check_cxx_source_compiles("
  #if !(defined(__x86_64__) || defined(__aarch64__)) || !defined(__LP64__)
  #error not amd64 or arm64
  #endif
  int main() { return 0; }" UWARP_CPU_SUPPORTED)
if(NOT UWARP_CPU_SUPPORTED)
  message(FATAL_ERROR "uwarp supports amd64 and arm64 only")
endif()

check_cxx_source_compiles("
  #include <features.h>
  #ifndef __GLIBC__
  #error not glibc
  #endif
  int main() { return 0; }" UWARP_LIBC_SUPPORTED)
if(NOT UWARP_LIBC_SUPPORTED)
  message(FATAL_ERROR "uwarp supports glibc only: the preloaded part relies on its symbols")
endif()
