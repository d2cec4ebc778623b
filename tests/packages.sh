# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# Sourced by demo.sh, test.sh and bench/run: the Debian packages uwarp is built, tested and measured
# with, and a function that installs those which are missing. When nothing is missing, apt is not
# called at all, so runs without a network work.

# make: without it g++ optimises a library in one process; g++ 14 then gives a warning.
BUILD_PACKAGES=(cmake ninja-build make g++ pkg-config libnl-3-dev libnl-route-3-dev libisal-dev
                libibverbs-dev librdmacm-dev libssl-dev libtirpc-dev libcli11-dev nlohmann-json3-dev)
TOOL_PACKAGES=(ibverbs-utils rdmacm-utils perftest qperf)
TEST_PACKAGES=(libgtest-dev libgmock-dev python3 python3-pytest python3-pyverbs
               python3-dev pybind11-dev
               iproute2 util-linux procps netcat-traditional openssl tshark man-db codespell
               abigail-tools
               fio libfabric-bin ucx-utils python3-mpi4py bubblewrap python3-seccomp
               iperf dapl2-utils tgt libiscsi-bin valgrind)
# Without it the same tests run one after the other.
WORKER_PACKAGES=(python3-pytest-xdist)
APPLICATION_PACKAGES=(libucx-dev qemu-system-x86 hpcc golang-go ceph-mon ceph-common
                      mpich libmpich-dev)
CONTAINER_PACKAGES=(debootstrap git python3-yaml)
FUZZ_PACKAGES=(clang)
FOREIGN_PACKAGES=(libabsl-dev libgoogle-glog-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc)
ARM64_PACKAGES=(g++-aarch64-linux-gnu qemu-user-static)
TIDY_PACKAGES=(clang-tidy-14)
COVERAGE_PACKAGES=(gcovr)
SIW_PACKAGES=(qemu-system-x86 gcc make flex bison bc cpio kmod xz-utils iproute2)
PACKAGING_PACKAGES=(debhelper dpkg-dev fakeroot lintian debootstrap rpm rpmlint
                    iproute2 util-linux)
BENCH_PACKAGES=(ucx-utils libfabric-bin iperf3 libbenchmark-dev valgrind python3-matplotlib
                iproute2 util-linux)

package_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

install_packages() {
  local missing=() package sudo=()
  command -v dpkg-query >/dev/null || {
    echo "Not a Debian system: make sure these are installed: $*" >&2
    return 0
  }
  for package in "$@"; do
    package_installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "These packages are missing and there is no sudo: ${missing[*]}" >&2
      return 1
    }
    sudo=(sudo)
  fi
  echo "== installing ${missing[*]}"
  # A stale package list is the usual reason for a failed download, so try again with a fresh one.
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
  }
}
