#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# Installs what is missing, builds, runs the tests, and ends with one line of totals over all
# runners. The exit status is 0 only if something ran and nothing failed.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
. tests/packages.sh

usage() {
  cat <<'END'
usage: ./test.sh [--fast] [--asan] [--tsan] [--models] [--siw] [--applications] [--containers]
                 [--packages] [--arm64] [--compilers] [--tidy] [--coverage] [--mutate [COUNT]] [--fuzz SECONDS]
                 [--soak SECONDS] [--hostile SECONDS] [--tls] [--rdma-core FOLDER [TAG...]] [--foreign FOLDER]
                 [--name PATTERN]
The suites are the GoogleTest binaries but fault_tests: unit, simulation, conformance and model
tests, verbs programs in both personas, librpcrdma, nfs-rdma, uwarp-stat, layouts of libibverbs.
  (none)          plain build of everything; checks of the source and its pages; the suites, unit,
                  simulation and conformance tests under ASan and UBSan with assertions; what runs
                  out (fault_tests), verbs tests on one processor by TCP, fuzz replay, a short soak,
                  pyverbs-tests; stock tools on loopback and between network namespaces; attacks by
                  another user of the machine
  --fast          quick checks of the source; the suites and fault_tests of the plain build
  --asan          the suites, fuzz replay and pyverbs-tests under ASan and UBSan
  --tsan          the suites under TSan
  --tls           unit tests of TLS, verbs programs of both personas with UWARP_TLS=psk, and tests of
                  tools that are about it
  --models        the models of hand-offs between threads, with more preemptions than by default
  --siw           uwarp and the Linux kernel's siw, which runs in a virtual machine
  --packages      Debian packages, built twice, checked, and run in fresh Debian 12 and 13; packages
                  by the Red Hat spec
  --arm64         everything cross-built for arm64; the suites without verbs programs, and
                  ibv_devinfo, under QEMU's user emulation
  --compilers     everything built without a warning by each g++ and clang that the system offers, as
                  C++20 and C++23; the suites without verbs programs of each build
  --tidy          clang-tidy on every source of what is installed; with --name only on those with
                  PATTERN in their path; each header compiled alone
  --coverage      the suites without layouts of libibverbs, and which part of the lines they run;
                  the report is build-coverage/coverage.txt
  --mutate COUNT  changes the protocol code in COUNT places (300), one at a time, and says which
                  changes unit, simulation and conformance tests do not notice
  --applications  fio, libfabric, UCX, Open MPI, MPICH, QEMU, hpcc, Ceph and Go in full
  --containers    README's first steps and the recipes of docs/recipes, in bare root file systems
                  of Debian 12; needs root and the network
  --rdma-core FOLDER [TAG...]
                  stock tools of other releases of rdma-core, built from FOLDER, a git clone or its
                  git directory; both with uwarp built for them and with build/ as it is. Without TAG
                  v39.0, v50.0, v56.0 and v64.0
  --foreign FOLDER
                  what others wrote, built from its sources in FOLDER: google/rdma-unit-test, each of its
                  tests in a process of its own, or the transport net_ib of NVIDIA/nccl; in both personas
  --fuzz SECONDS  the fuzz targets under libFuzzer, that long in total
  --soak SECONDS  random work on 100 queue pairs between processes that are killed, that long;
                  SOAK_SEED chooses another course
  --hostile SECONDS
                  attacks by another user of the machine beside honest connections, each that long
  --name PATTERN  only tests whose name contains PATTERN (combines with the others)
END
}

mode=default
fuzz_seconds=0
mutants=300
soak_seconds=5
hostile_seconds=1
rdma_core=
rdma_core_tags=()
foreign=
name=
while [ $# -gt 0 ]; do
  case "$1" in
    --fast|--asan|--tsan|--models|--tls|--siw|--applications|--containers|--packages|--arm64|--tidy|\
    --coverage|--compilers)
      mode=${1#--} ;;
    --mutate)
      mode=mutate
      if [[ "${2:-}" =~ ^[1-9][0-9]*$ ]]; then mutants=$2; shift; fi ;;
    --fuzz)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }
      mode=fuzz; fuzz_seconds=$2; shift ;;
    --soak)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }
      mode=soak; soak_seconds=$2; shift ;;
    --hostile)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }
      mode=hostile; hostile_seconds=$2; shift ;;
    --foreign)
      [ -d "${2:-}" ] || { usage >&2; exit 2; }
      mode=foreign; foreign=$2; shift ;;
    --rdma-core)
      [ -d "${2:-}" ] || { usage >&2; exit 2; }
      mode=rdma-core; rdma_core=$2; shift
      while [[ "${2:-}" =~ ^v[0-9] ]]; do rdma_core_tags+=("$2"); shift; done ;;
    --name)
      [ -n "${2:-}" ] || { usage >&2; exit 2; }
      name=$2; shift ;;
    -h|--help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

results=$(mktemp -d "${TMPDIR:-/tmp}/uwarp-test.XXXXXX")
trap 'rm -rf "$results"' EXIT
python=/usr/bin/python3

# SECONDS: since the start of this script.
step() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

# record NAME OUTCOME: the result of a check that writes no report of its own.
record() {
  printf '%s %s\n' "$2" "$1" >>"$results/single"
  [ "$2" != failed ] || echo "FAILED: $1"
}

# A single check is left out when a name pattern asks for others.
wanted() { [ -z "$name" ] || [[ "$1" == *"$name"* ]]; }

check() {
  local label=$1
  shift
  wanted "$label" || return 0
  step "$label"
  local status=0
  "$@" || status=$?
  case $status in
    0) record "$label" passed ;;
    77) record "$label" skipped ;;
    *) record "$label" failed ;;
  esac
}

# gtest DIR BINARY [COMMAND in front]: the report's numbers count; a crash, a sanitizer's finding or
# a missing binary counts as one failure.
gtest() {
  local dir=$1 binary=$2 report status=0 filter="*$name*${WITHOUT:+-$WITHOUT}"
  shift 2
  report=$results/$(basename "$dir")-$binary${UWARP_PERSONA:+-$UWARP_PERSONA}.xml
  [ -x "$dir/bin/$binary" ] || { record "$dir/bin/$binary was not built" failed; return; }
  step "$binary in $dir${UWARP_PERSONA:+, persona $UWARP_PERSONA}"
  timeout "${LIMIT:-600}" "$@" "$dir/bin/$binary" --gtest_brief=1 --gtest_filter="$filter" \
      --gtest_output="xml:$report" || status=$?
  if [ "$status" -ne 0 ] && ! "$python" tests/totals.py --has-failure "$report"; then
    record "$dir/$binary ended with status $status" failed
  fi
}

# side_by_side FUNCTION A B ARGUMENT...: "FUNCTION A ARGUMENT..." and "FUNCTION B ARGUMENT..." at the same
# time, as neither keeps two processors busy. The output of B comes behind that of A.
side_by_side() {
  local function=$1 first=$2 second=$3 output
  shift 3
  output=$(mktemp "$results/output.XXXXXX")
  "$function" "$second" "$@" >"$output" 2>&1 &
  "$function" "$first" "$@"
  wait $!
  cat "$output"
}

# gtest_list "BINARY..." DIR [COMMAND in front]
gtest_list() {
  local binaries=$1 dir=$2 binary
  shift 2
  for binary in $binaries; do gtest "$dir" "$binary" "$@"; done
}

# GoogleTest binaries of a build folder that run alone: DIR [COMMAND in front].
lone_gtests() {
  local dir=$1 binary first="rpcrdma_tests stat_tests" second=nfs_tests
  # Models have one thread.
  [ "$dir" = build-tsan ] || first+=" model_tests"
  # The default run has these in the sanitized build, with assertions: see there.
  [ "$mode" = default ] || { first+=" unit_tests"; second+=" sim_tests conformance_tests"; }
  side_by_side gtest_list "$first" "$second" "$@"
  shift
  # One per release of libibverbs; --coverage builds none.
  for binary in "$dir"/bin/provider_layout_*; do
    [ ! -x "$binary" ] || gtest "$dir" "$(basename "$binary")" "$@"
  done
}

# verbs_gtests "BINARY..." DIR. The preloaded library comes before the sanitizer's runtime, which is right
# here.
verbs_gtests() {
  ASAN_OPTIONS=verify_asan_link_order=0 TSAN_OPTIONS=suppressions=tests/verbs/tsan.supp \
    gtest_list "$@" "$2/bin/uwarp-run"
}

persona_gtests() {
  local copies=one
  [ "$2" = build ] || copies=two
  UWARP_PERSONA=$1 UWARP_SHM_COPIES=$copies verbs_gtests "verbs_tests rpcrdma_verbs_tests" "$2"
}

# Every GoogleTest binary of a build folder.
gtests() {
  lone_gtests "$1"
  side_by_side persona_gtests iwarp roce "$1"
  verbs_gtests direct_verbs_tests "$1"
  UWARP_PERSONA=roce verbs_gtests direct_verbs_tests "$1"
}

# Both ends on one processor, where pollers give way, and on TCP: elsewhere connections on one host
# leave it. Without tests that mostly wait, and those of overload, which the other runs have.
one_processor() {
  local first
  first=$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')
  WITHOUT='PeerLoss.*:Connection.*:Waits.*:Limits.*:Overload.*:Half.*:Neighbour.*' \
    gtest "$1" verbs_tests env UWARP_SHM=0 taskset -c "$first" "$1/bin/uwarp-run"
}

# Verbs programs whose connections are protected, all of them by TCP. Without what goes by UDP: that
# is refused.
protected_gtests() {
  local without='Multicast.*:CmDatagrams.*:WrongArguments.OfDatagrams:WrongArguments.OfRdmaCm'
  without+=':DocumentedErrors.OfQueuesAndQueuePairs'
  export UWARP_TLS=psk UWARP_TLS_PSK=$results/keys UWARP_SHM=0
  (umask 077 && echo "alice:$(openssl rand -hex 32)" >"$UWARP_TLS_PSK")
  WITHOUT=$without side_by_side persona_gtests iwarp roce "$1"
  verbs_gtests direct_verbs_tests "$1"
  UWARP_PERSONA=roce verbs_gtests direct_verbs_tests "$1"
  unset UWARP_TLS UWARP_TLS_PSK UWARP_SHM
}

# gtests() for arm64 under QEMU; tests of what that cannot do say so and are skipped.
emulated_gtests() {
  local dir=$1
  local emulator=(qemu-aarch64-static -L "$dir/sysroot")
  # It does not execute a program of arm64 again, nor close what of a message does not fit, nor take
  # pages of a file back, nor set a congestion control of three letters.
  local without='PullCost.*:MailboxTest.ManyDescriptorsBehindOneThatWaitsFillNoTable'
  without+=':RingCarrier.AnIdleRingReturnsItsMemory:TcpSocket.FarPeersGetTheSystems*'
  WITHOUT=$without LIMIT=3600 \
    lone_gtests "$dir" "${emulator[@]}"
  # uwarp-run cannot execute it there.
  emulator+=(-E "LD_PRELOAD=$PWD/$dir/lib/libuwarp-preload.so" "$dir/sysroot/usr/bin/ibv_devinfo")
  check arm64_devinfo sh -c '"$@" | tee -a /dev/stderr | grep -q PORT_ACTIVE' sh \
    timeout 300 "${emulator[@]}" -d uwarp_lo
}

# Memory, threads and files that run out. Not sanitized: the programs have an operator new of their
# own.
faults() {
  gtest "$1" engine_fault_tests
  gtest "$1" fault_tests "$1/bin/uwarp-run"
  # Datagrams: iWARP has none.
  UWARP_PERSONA=roce name=${name:-OfQueuePairsForDatagrams} gtest "$1" fault_tests "$1/bin/uwarp-run"
}

# With assertions: the logic without sockets or applications.
sanitized() {
  build --asan -- runnable unit_tests sim_tests conformance_tests &&
    side_by_side gtest_list unit_tests "sim_tests conformance_tests" build-asan
}

# What needs little of a processor.
light_ones() {
  faults "$1"
  fuzz_replay "$1"
  [ ! -d pyverbs-tests ] || pytest_run pyverbs pyverbs-tests "$1/bin/uwarp-run"
}

call() { "$@"; }

# pytest_run LABEL FOLDER [COMMAND in front of Python...]: with MARK set, only tests that have it;
# with WORKERS set, so many at a time.
pytest_run() {
  local label=$1 folder=$2 status=0
  shift 2
  [ -d "$folder" ] || return 0
  step "$label"
  local select=()
  [ -z "$name" ] || select=(-k "$name")
  [ -z "${MARK:-}" ] || select+=(-m "$MARK")
  [ -z "${WORKERS:-}" ] || select+=(-n "$WORKERS")
  "$@" "$python" -m pytest -q -p no:cacheprovider "${select[@]}" \
      --junitxml="$results/$label.xml" "$folder" || status=$?
  # 5: nothing was selected, which is fine as long as something runs elsewhere.
  if [ "$status" -ne 0 ] && [ "$status" -ne 5 ] &&
     ! "$python" tests/totals.py --has-failure "$results/$label.xml"; then
    record "$label ended with status $status" failed
  fi
}

# Attacks by another user, beside honest connections.
hostile() { pytest_run hostile tests/hostile env "PYTEST_ADDOPTS=--seconds=$hostile_seconds"; }

# How many tests of tools run at a time: many of them wait more than they work. Each worker has a
# network namespace of its own, which asks for root. Nothing: one, without pytest-xdist.
tool_workers() {
  [ "$(id -u)" -ne 0 ] || ! "$python" -c 'import xdist' 2>/dev/null || echo 3
}

# Python is not sanitized, so the sanitizer's runtime is preloaded; what Python itself leaks is not
# looked at.
sanitized_pyverbs() {
  local runtime
  runtime=$("${CXX:-c++}" -print-file-name=libasan.so)
  UWARP_BUILD=build-asan ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 \
    pytest_run pyverbs-asan pyverbs-tests build-asan/bin/uwarp-run \
      sh -c 'LD_PRELOAD="$0 $LD_PRELOAD" exec "$@"' "$runtime"
}

fuzz_replay() {
  local target label
  for target in "$1"/bin/*_fuzz; do
    [ -x "$target" ] || continue
    label=$(basename "$target")
    check "$label" timeout 300 "$target" "tests/fuzz/corpus/${label%_fuzz}"
  done
}

fuzz() {
  local targets=(build-fuzz/bin/*_fuzz) target label each corpus
  [ -x "${targets[0]}" ] || { record "no fuzz target was built" failed; return; }
  each=$((fuzz_seconds / ${#targets[@]}))
  [ "$each" -gt 0 ] || each=1
  for target in "${targets[@]}"; do
    label=$(basename "$target")
    # Finds go to a scratch folder first, the checked-in corpus is only read.
    corpus=$results/corpus-$label
    mkdir -p "$corpus" "tests/fuzz/corpus/${label%_fuzz}"
    check "$label for $each s" "$target" -max_total_time="$each" -print_final_stats=1 \
        -verbosity=0 -artifact_prefix="build-fuzz/" "$corpus" "tests/fuzz/corpus/${label%_fuzz}"
  done
}

soak() {
  check "soak for $1 s" timeout $(($1 + 300)) build/bin/uwarp-run build/bin/soak \
    --seconds "$1" --seed "${SOAK_SEED:-1}"
  check "soak of datagrams for $1 s" timeout $(($1 + 300)) env UWARP_PERSONA=roce \
    build/bin/uwarp-run build/bin/datagram_soak --seconds "$1" --seed "${SOAK_SEED:-1}"
}

# rdma_core_tools TAG WAY BUILD: the tests of stock tools with a release of rdma-core.
rdma_core_tools() {
  local release=$PWD/build-rdma-core/$1/release tools
  tools="test_ibverbs_utils or test_rdmacm_utils or test_perftest or test_rdma_core"
  rm -f "$release"/etc/libibverbs.d/*
  [ "$2" != driver ] || echo "driver uwarp" >"$release/etc/libibverbs.d/uwarp.driver"
  name=${name:+($name) and }"($tools)" UWARP_BUILD=$3 UWARP_RDMA_CORE=$release \
    UWARP_RDMA_CORE_WAY=$2 PATH=$release/bin:$PATH \
    LD_LIBRARY_PATH=$release/lib:$3/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    pytest_run "rdma-core-$1-$2" tests/tools
}

# Both ways for libibverbs to come by the plugin: it lies beside the preloaded library, built with the
# release's headers; or a driver file names it, and it is that of build/.
rdma_core_release() {
  local folder=$PWD/build-rdma-core/$1
  step "rdma-core $1"
  tests/rdma-core/build "$rdma_core" "$1" "$folder" || { record "build of rdma-core $1" failed; return; }
  rdma_core_tools "$1" beside "$folder/uwarp"
  rdma_core_tools "$1" driver "$folder/driver"
}

# What can be said of the source without building it.
source_checks() {
  check layers "$python" tests/check_layers.py
  check conformance_page "$python" tests/conformance/table.py --check
  check security_page "$python" tests/security_page.py
  check licences "$python" tests/licences.py
  check release_version "$python" tests/release_version.py
  check markdown_links "$python" tests/markdown_links.py
}

# What the symbols of the libraries say.
library_checks() {
  check process_state "$python" tests/process_state.py "$1"
}

# Slower ones, and those that need programs of their own.
page_checks() {
  check manual_pages "$python" tests/manual_pages.py
  check spelling codespell --config tests/codespell.cfg
  # Another version of it has other opinions.
  if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
    check format tests/clang_format
  else
    record "format (needs clang-format 14)" skipped
  fi
}

distribution() {
  local folder=$PWD/build-packages
  # With the tests that the packages run as they are built; those of "reproducible" leave them out.
  check debian_build env "DEB_BUILD_OPTIONS=parallel=$(nproc)" tests/distribution/build-debs "$folder"
  check lintian sh -c 'lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$0"/*.changes' \
    "$folder"
  check debian_12 tests/distribution/install-debs bookworm "$folder"
  check debian_13 tests/distribution/install-debs trixie "$folder"
  check rpm tests/distribution/build-rpms "$folder"
  check reproducible tests/distribution/reproduce "$folder"
}

# The compilers of the distribution from these releases on; older ones lack parts of C++20.
compiler_packages() {
  apt-cache --names-only search '^(g\+\+|clang)-[0-9]+$' 2>/dev/null |
    sed -nE 's/^((g\+\+-(1[2-9]|[2-9][0-9]))|(clang-(1[4-9]|[2-9][0-9]))) .*/\1/p'
}

compilers() {
  local package cxx cc standard folder
  for package in $(compiler_packages); do
    cc=${package/g++/gcc}
    cxx=${package/clang-/clang++-}
    wanted "$cxx" || continue
    for standard in 20 23; do
      folder=build-compilers/$cxx-$standard
      CC=$cc CXX=$cxx build --std "$standard" --dir "$folder" || continue
      name= lone_gtests "$folder"
    done
  done
}

# Which part of the lines that have code has run, of everything that is installed.
coverage() {
  step coverage
  # CMake's own trials have no source any more.
  gcovr --root . --object-directory build-coverage -j "$(nproc)" \
      --exclude-directories '.*/CMakeFiles/[0-9.]+/.*' \
      --filter providers/ --filter rpcrdma/ --filter nfs/ --filter tools/ \
      --txt build-coverage/coverage.txt --json-summary "$results/coverage.json" \
      >"$results/gcovr.log" 2>&1 || {
    tail -n 20 "$results/gcovr.log"
    record coverage failed
  }
}

build() {
  local log
  log=$(mktemp "$results/build.XXXXXX")
  step "build $*"
  ./build.sh "$@" >"$log" 2>&1 && { tail -n 1 "$log"; return 0; }
  tail -n 60 "$log"
  record "build $*" failed
  return 1
}

packages=("${BUILD_PACKAGES[@]}" "${TOOL_PACKAGES[@]}" "${TEST_PACKAGES[@]}")
[ "$mode" != packages ] || packages+=("${PACKAGING_PACKAGES[@]}")
[ "$mode" != applications ] || packages+=("${APPLICATION_PACKAGES[@]}")
[ "$mode" != containers ] || packages+=("${CONTAINER_PACKAGES[@]}")
[ "$mode" != siw ] || packages+=("${SIW_PACKAGES[@]}")
[ "$mode" != foreign ] || packages+=("${FOREIGN_PACKAGES[@]}")
[ "$mode" != fuzz ] || packages+=("${FUZZ_PACKAGES[@]}")
[ "$mode" != arm64 ] || packages+=("${ARM64_PACKAGES[@]}")
[ "$mode" != compilers ] || mapfile -O "${#packages[@]}" -t packages < <(compiler_packages)
[ "$mode" != tidy ] || packages+=("${TIDY_PACKAGES[@]}")
[ "$mode" != coverage ] || packages+=("${COVERAGE_PACKAGES[@]}")
[ "$mode" != default ] || install_packages "${WORKER_PACKAGES[@]}" || true
install_packages "${packages[@]}" || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }

case "$mode" in
  fast)
    source_checks
    build && { library_checks build; gtests build; faults build; }
    ;;
  asan)
    build --asan && { gtests build-asan; fuzz_replay build-asan; sanitized_pyverbs; }
    ;;
  tsan)
    build --tsan && gtests build-tsan
    ;;
  tls)
    build -- runnable {unit,verbs,rpcrdma_verbs,direct_verbs}_tests uwarp_stat uwarp_doctor && {
      name='Tls' gtest build unit_tests
      protected_gtests build
      pytest_run tls tests/tools/test_tls.py
    }
    ;;
  models)
    build -- model_tests && UWARP_MODEL_DEPTH=2 LIMIT=7200 gtest build model_tests
    ;;
  siw)
    build && pytest_run siw tests/siw-lab
    ;;
  applications|containers)
    build && MARK=$mode pytest_run "$mode" tests/tools
    ;;
  rdma-core)
    [ ${#rdma_core_tags[@]} -gt 0 ] || rdma_core_tags=(v39.0 v50.0 v56.0 v64.0)
    build -- runnable && for tag in "${rdma_core_tags[@]}"; do rdma_core_release "$tag"; done
    ;;
  foreign)
    build -- runnable && step "build of $foreign" && if suite=$(tests/foreign/build "$foreign" build-foreign); then
      WORKERS=$(tool_workers) pytest_run foreign "tests/foreign/$suite"
    else
      record "build of $foreign" failed
    fi
    ;;
  soak)
    build && soak "$soak_seconds"
    ;;
  hostile)
    build -- runnable victim && hostile
    ;;
  fuzz)
    build --fuzz -- fuzzers && fuzz
    ;;
  packages)
    distribution
    ;;
  arm64)
    build --arm64 && emulated_gtests build-arm64
    ;;
  compilers)
    compilers
    ;;
  tidy)
    # compile_commands.json has all files, whichever target is built.
    build --apart -- uwarp_run && name= check clang_tidy tests/tidy build-apart "$name"
    # Most are compiled first by their .cc, which "apart" shows too.
    check headers_alone cmake --build build-apart --target headers_alone
    ;;
  coverage)
    # Counts of earlier runs do not count.
    find build-coverage -name '*.gcda' -delete 2>/dev/null
    build --coverage -- runnable {unit,sim,conformance,model,rpcrdma,nfs,stat}_tests \
        {verbs,direct_verbs,rpcrdma_verbs}_tests &&
      { gtests build-coverage; coverage; }
    ;;
  mutate)
    # A survivor is for people to look at; what fails is a run without a score.
    name= check mutation tests/mutate "$mutants"
    ;;
  default)
    source_checks
    page_checks
    if build -- default_run; then
      check environment_page "$python" tests/environment_page.py --check build/bin/uwarp-run
      check abi tests/abi/check build
      library_checks build
      check named_programs "$python" tests/named_programs.py build
      check verbs_page "$python" tests/verbs_page.py
      check wrong_arguments_page "$python" tests/wrong_arguments_page.py --check build/bin/verbs_tests
      # Programs of verbs wait a lot. This fills the processors meanwhile, and is behind them otherwise.
      (renice -n 19 "$BASHPID" && sanitized) >"$results/sanitized" 2>&1 &
      gtests build
      side_by_side call one_processor light_ones build
      soak "$soak_seconds"
      wait
      cat "$results/sanitized"
      WORKERS=$(tool_workers) pytest_run tools tests/tools
      hostile
    fi
    ;;
esac

step totals
"$python" tests/totals.py "$results"
