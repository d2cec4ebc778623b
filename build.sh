#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# Configures and builds uwarp into build/, ready to use in place: build/bin/uwarp-run COMMAND.
set -euo pipefail
cd "$(dirname "$0")"

usage() {
  cat <<'END'
usage: ./build.sh [--asan | --tsan | --fuzz | --debug | --apart | --coverage | --arm64] [--std N] [--dir DIR]
                  [-- TARGET...]
  (none)      optimised build in build/
  --asan      with AddressSanitizer and UndefinedBehaviorSanitizer, in build-asan/
  --tsan      with ThreadSanitizer, in build-tsan/
  --fuzz      libFuzzer targets with clang, in build-fuzz/
  --debug     without optimisation, assertions on, in build-debug/
  --apart     each file compiled alone, in build-apart/: quicker to build again after a change of one
  --coverage  counts for gcov how often each line runs, in build-coverage/
  --arm64     for arm64 with Debian's cross compiler, in build-arm64/; libraries from the network
  --std N     as C++N instead of C++20
The compiler is what CXX and CC name, or the system's.
END
}

dir=build
wanted_dir=
standard=
cross=
sanitized=(-DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1")
# Lines and functions for traces; with the types of -g a build takes a third longer.
traced="-O2 -g1 -DNDEBUG"
cmake_args=(-DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=$traced"
            "-DCMAKE_C_FLAGS_RELWITHDEBINFO=$traced")
while [ $# -gt 0 ]; do
  case "$1" in
    --asan)
      dir=build-asan
      cmake_args=("${sanitized[@]}" "-DUWARP_SANITIZE=address,undefined") ;;
    --tsan)
      dir=build-tsan
      cmake_args=("${sanitized[@]}" -DUWARP_SANITIZE=thread) ;;
    --fuzz)
      dir=build-fuzz
      clang=$(compgen -c clang++ | grep -E '^clang\+\+(-[0-9]+)?$' | sort -V | tail -n 1 || true)
      [ -n "$clang" ] || { echo "build.sh: --fuzz needs clang" >&2; exit 1; }
      cmake_args=("${sanitized[@]}"
                  "-DCMAKE_CXX_COMPILER=$clang" "-DCMAKE_C_COMPILER=${clang/++/}"
                  -DUWARP_FUZZ=ON "-DUWARP_SANITIZE=address,undefined" -DUWARP_WERROR=OFF) ;;
    --debug)
      dir=build-debug
      cmake_args=(-DCMAKE_BUILD_TYPE=Debug) ;;
    --apart)
      dir=build-apart
      cmake_args+=(-DCMAKE_UNITY_BUILD=OFF) ;;
    --coverage)
      dir=build-coverage
      # Lines keep their places without optimisation only; counters are shared by threads.
      cmake_args=(-DCMAKE_BUILD_TYPE=Debug
                  "-DCMAKE_C_FLAGS=--coverage -fprofile-update=atomic"
                  "-DCMAKE_CXX_FLAGS=--coverage -fprofile-update=atomic") ;;
    --arm64)
      dir=build-arm64
      cross=1 ;;
    --std)
      [[ "${2:-}" =~ ^[0-9]+$ ]] || { usage >&2; exit 2; }
      standard=$2; shift ;;
    --dir)
      [ $# -gt 1 ] || { usage >&2; exit 2; }
      wanted_dir=$2; shift ;;
    --) shift; break ;;
    -h|--help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
dir=${wanted_dir:-$dir}
[ -z "$standard" ] || cmake_args+=("-DCMAKE_CXX_STANDARD=$standard")

if [ -n "$cross" ]; then
  tests/arm64/sysroot "$dir/sysroot"
  cmake_args+=("-DCMAKE_TOOLCHAIN_FILE=$PWD/cmake/arm64.cmake"
               "-DUWARP_SYSROOT=$(realpath "$dir")/sysroot" -DUWARP_BENCH=OFF)
fi
cmake -S . -B "$dir" -G Ninja "${cmake_args[@]}" >"${TMPDIR:-/tmp}/uwarp-configure.$$" 2>&1 || {
  cat "${TMPDIR:-/tmp}/uwarp-configure.$$"; rm -f "${TMPDIR:-/tmp}/uwarp-configure.$$"
  echo "build.sh: configuring failed; ./test.sh and ./demo.sh install what is needed" >&2
  exit 1
}
rm -f "${TMPDIR:-/tmp}/uwarp-configure.$$"
targets=()
for target in "$@"; do targets+=(--target "$target"); done
cmake --build "$dir" "${targets[@]}"
