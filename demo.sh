#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# Installs what is missing, builds, and runs two stock RDMA programs between two processes of this
# machine, which needs no RDMA hardware, no kernel module and no privileges (but for apt).
set -euo pipefail
cd "$(dirname "$0")"
. tests/packages.sh

install_packages "${BUILD_PACKAGES[@]}" "${TOOL_PACKAGES[@]}"
echo "== building"
build_log=$(mktemp)
server_out=$(mktemp)
server=
cleanup() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -f "$build_log" "$server_out"
}
trap cleanup EXIT
./build.sh -- programs >"$build_log" 2>&1 || { tail -n 40 "$build_log"; exit 1; }

run=$PWD/build/bin/uwarp-run

# pair PORT COMMAND...: a server, and against it a client on the loopback address.
pair() {
  local port=$1 status=0
  shift
  printf '\n== server: uwarp-run %s\n== client: uwarp-run %s 127.0.0.1\n' "$*" "$*"
  timeout 60 "$run" "$@" >"$server_out" 2>&1 &
  server=$!
  for _ in $(seq 100); do
    grep -qi ":$(printf %04x "$port") [0-9A-F:]* 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  timeout 60 "$run" "$@" 127.0.0.1 || status=$?
  wait "$server" || status=$?
  server=
  if [ "$status" -ne 0 ]; then
    echo "-- failed with status $status; the server said:"
    cat "$server_out"
    exit 1
  fi
}

echo
echo "== uwarp-run ibv_devices"
"$run" ibv_devices
pair 18515 ibv_rc_pingpong -p 18515 -g 0 -n 10000 -c
pair 18516 ib_write_bw -p 18516 -s 65536 -n 5000 -F
printf '\n== Both ran, without RDMA hardware. Put build/bin/uwarp-run in front of your own RDMA programs.\n'
printf '== More to try: README.md. What works on this machine: build/bin/uwarp-doctor\n'
