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
usage: ./test.sh [--fast] [--asan] [--tsan] [--fuzz SECONDS] [--name PATTERN]
  (none)          plain build of everything; layer and header checks; unit and simulation tests
                  under ASan and UBSan; stock tools on loopback and between network namespaces
  --fast          layer check, unit and simulation tests of the plain build
  --asan          unit, simulation and fuzz replay tests under ASan and UBSan
  --tsan          unit and simulation tests under TSan
  --fuzz SECONDS  the fuzz targets under libFuzzer, that long in total
  --name PATTERN  only tests whose name contains PATTERN (combines with the others)
END
}

mode=default
fuzz_seconds=0
name=
while [ $# -gt 0 ]; do
  case "$1" in
    --fast|--asan|--tsan) mode=${1#--} ;;
    --fuzz)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }
      mode=fuzz; fuzz_seconds=$2; shift ;;
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

step() { printf '\n== %s\n' "$*"; }

# record NAME OUTCOME: the result of a check that writes no report of its own.
record() {
  printf '%s %s\n' "$2" "$1" >>"$results/single"
  [ "$2" = passed ] || echo "FAILED: $1"
}

# A single check is left out when a name pattern asks for others.
wanted() { [ -z "$name" ] || [[ "$1" == *"$name"* ]]; }

check() {
  local label=$1
  shift
  wanted "$label" || return 0
  step "$label"
  if "$@"; then record "$label" passed; else record "$label" failed; fi
}

# gtest DIR BINARY [COMMAND in front]: the report's numbers count; a crash or a sanitizer's finding
# counts as one failure.
gtest() {
  local dir=$1 binary=$2 report status=0 filter='*'
  shift 2
  report=$results/$(basename "$dir")-$binary.xml
  [ -x "$dir/bin/$binary" ] || return 0
  [ -z "$name" ] || filter="*$name*"
  step "$binary in $dir"
  timeout 600 "$@" "$dir/bin/$binary" --gtest_brief=1 --gtest_filter="$filter" \
      --gtest_output="xml:$report" || status=$?
  if [ "$status" -ne 0 ] && ! "$python" tests/totals.py --has-failure "$report"; then
    record "$dir/$binary ended with status $status" failed
  fi
}

# Every GoogleTest binary of a build folder.
gtests() {
  local binary
  for binary in "$1"/bin/{unit_tests,sim_tests,provider_layout_*}; do
    gtest "$1" "$(basename "$binary")"
  done
  # The preloaded library comes before the sanitizer's runtime, which is right here.
  ASAN_OPTIONS=verify_asan_link_order=0 TSAN_OPTIONS=suppressions=tests/verbs/tsan.supp \
    gtest "$1" verbs_tests "$1/bin/uwarp-run"
  ASAN_OPTIONS=verify_asan_link_order=0 TSAN_OPTIONS=suppressions=tests/verbs/tsan.supp \
    gtest "$1" direct_verbs_tests "$1/bin/uwarp-run"
}

# pytest_run LABEL FOLDER [COMMAND in front of Python...]
pytest_run() {
  local label=$1 folder=$2 status=0
  shift 2
  [ -d "$folder" ] || return 0
  step "$label"
  local select=()
  [ -z "$name" ] || select=(-k "$name")
  "$@" "$python" -m pytest -q -p no:cacheprovider "${select[@]}" \
      --junitxml="$results/$label.xml" "$folder" || status=$?
  # 5: nothing was selected, which is fine as long as something runs elsewhere.
  if [ "$status" -ne 0 ] && [ "$status" -ne 5 ] &&
     ! "$python" tests/totals.py --has-failure "$results/$label.xml"; then
    record "$label ended with status $status" failed
  fi
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

build() {
  step "build $*"
  ./build.sh "$@" >"$results/build.log" 2>&1 && { tail -n 1 "$results/build.log"; return 0; }
  tail -n 60 "$results/build.log"
  record "build $*" failed
  return 1
}

packages=("${BUILD_PACKAGES[@]}" "${TOOL_PACKAGES[@]}" "${TEST_PACKAGES[@]}")
[ "$mode" != fuzz ] || packages+=("${FUZZ_PACKAGES[@]}")
install_packages "${packages[@]}" || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }

case "$mode" in
  fast)
    check layers "$python" tests/check_layers.py
    build && gtests build
    ;;
  asan)
    build --asan && { gtests build-asan; fuzz_replay build-asan; }
    ;;
  tsan)
    build --tsan && gtests build-tsan
    ;;
  fuzz)
    build --fuzz -- fuzzers && fuzz
    ;;
  default)
    check layers "$python" tests/check_layers.py
    if build; then
      check headers_alone cmake --build build --target headers_alone
      check environment_page "$python" tests/environment_page.py --check build/bin/uwarp-run
      gtests build
      fuzz_replay build
      pytest_run tools tests/tools
      [ ! -d pyverbs-tests ] || pytest_run pyverbs pyverbs-tests build/bin/uwarp-run
    fi
    build --asan -- unit_tests sim_tests && { gtest build-asan unit_tests; gtest build-asan sim_tests; }
    ;;
esac

step totals
"$python" tests/totals.py "$results"
