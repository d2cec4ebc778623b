# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# Toolchain file: Debian's cross compiler for arm64, the libraries that tests/arm64/sysroot has put into
# UWARP_SYSROOT, and QEMU's user emulation for what runs during the build and in ctest.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

# Checks of the compiler read this file again, in projects of their own.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES UWARP_SYSROOT)
set(CMAKE_SYSROOT "${UWARP_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${UWARP_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR}
  "${UWARP_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${UWARP_SYSROOT}/usr/share/pkgconfig")

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L "${UWARP_SYSROOT}")
