# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# Libraries of the distribution, all found by pkg-config. libibverbs and librdmacm are needed for
# their headers; at run time the application brings them.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

pkg_check_modules(NL REQUIRED IMPORTED_TARGET libnl-3.0 libnl-route-3.0)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(IBVERBS REQUIRED IMPORTED_TARGET libibverbs)
pkg_check_modules(RDMACM REQUIRED IMPORTED_TARGET librdmacm)
# For UWARP_TLS only.
pkg_check_modules(OPENSSL IMPORTED_TARGET libssl>=3.0 libcrypto>=3.0)
if(NOT OPENSSL_FOUND)
  message(STATUS "OpenSSL 3 is missing: no libuwarp-tls.so, and UWARP_TLS is refused")
endif()

# Where libibverbs looks for plugins, and where for the files that name them.
pkg_get_variable(UWARP_IBVERBS_LIBDIR libibverbs libdir)
set(UWARP_PROVIDERDIR "${CMAKE_INSTALL_FULL_LIBDIR}/libibverbs" CACHE PATH
    "Folder in which libibverbs looks for provider plugins")
set(UWARP_DRIVERDIR "${CMAKE_INSTALL_FULL_SYSCONFDIR}/libibverbs.d" CACHE PATH
    "Folder of the .driver files of libibverbs")
