#!/usr/bin/env bash
# tests/deploy/check_packages.sh ROOT BIN - the packages can be made, have what they promise, and no error that lintian knows (that part is left out
# without lintian).
set -u
. "$1/deploy/lib/common.sh"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
make_packages "$(dirname "$2")" "$dir" >"$dir/list" || exit 1

has() {
  local package=$1 path; shift
  dpkg-deb -c "$dir"/sluice-"$package"_*.deb >"$dir/files" || exit 1
  for path; do grep -qF " .$path" "$dir/files" || { echo "sluice-$package has no $path"; exit 1; }; done
}
has common /lib/systemd/system/sluice.target /usr/lib/sysusers.d/sluice.conf /usr/lib/tmpfiles.d/sluice.conf \
  /usr/share/sluice/dashboards/sluice.rules.yml /usr/share/sluice/dashboards/prometheus.yml /usr/share/sluice/dashboards/sluice.grafana.json
has router /usr/bin/sluice-router /etc/sluice/router.conf /lib/systemd/system/sluice-router.service /usr/share/man/man8/sluice-router.8.gz
has node /usr/bin/sluice-prefill /usr/bin/sluice-decode /etc/sluice/prefill-0.conf /etc/sluice/decode-0.conf \
  /lib/systemd/system/sluice-prefill@.service /lib/systemd/system/sluice-decode@.service /usr/share/man/man8/sluice-decode.8.gz
has tools /usr/bin/sluicectl /usr/bin/sluice-bench /usr/share/bash-completion/completions/sluicectl /usr/share/man/man1/sluicectl.1.gz
dpkg-deb -f "$dir"/sluice-node_*.deb Depends | grep -q libucx0 || { echo "sluice-node does not depend on UCX, which it loads"; exit 1; }

command -v lintian >/dev/null || { echo "lintian is not here; the packages are not judged"; exit 0; }
lintian --allow-root --fail-on error "$dir"/sluice-*.deb
