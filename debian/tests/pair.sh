# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#
# Sourced by the tests: a server and a client of stock tools on the loopback address, under uwarp-run,
# as the user that runs the tests. They need no privileges.

work=${AUTOPKGTEST_TMP:-$(mktemp -d)}
server=

end_server() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  server=
}
trap end_server EXIT

fail() {
  echo "$*" >&2
  exit 1
}

# listens PORT: true once a TCP socket listens there.
listens() {
  grep -qi ":$(printf %04x "$1") [0-9A-F:]* 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

# start_server PORT COMMAND...
start_server() {
  port=$1
  shift
  timeout 120 uwarp-run "$@" >"$work/server" 2>&1 &
  server=$!
  for _ in $(seq 300); do
    ! listens "$port" || return 0
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  cat "$work/server" >&2
  fail "no server at port $port: $*"
}

# pair PORT COMMAND...: both sides have to end with status 0. What they say is in server and client.
pair() {
  start_server "$@"
  shift
  echo "== $* 127.0.0.1"
  timeout 120 uwarp-run "$@" 127.0.0.1 >"$work/client" 2>&1 || {
    cat "$work/client" "$work/server" >&2
    fail "client: $*"
  }
  wait "$server" || {
    cat "$work/server" >&2
    fail "server: $*"
  }
  server=
  grep -v -- '---' "$work/client" | tail -n 2
}
