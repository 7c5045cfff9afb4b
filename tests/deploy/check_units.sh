#!/usr/bin/env bash
# tests/deploy/check_units.sh ROOT BIN - the systemd units say what systemd understands, and let the daemons do little.
#
# systemd-analyze works without a systemd that runs. The programs of the units are looked for in BIN, as they need not
# be installed here. 77 (skipped) without systemd-analyze.
set -u
root=$1 bin=$2
exposure=15 # of systemd-analyze security, times ten: 1.5 for a node that computes on the CPU
units='sluice-router.service sluice-prefill@0.service sluice-decode@0.service sluice.target'
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not here; the units are not checked"; exit 77; }

dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
for f in "$root"/deploy/systemd/*.service "$root"/deploy/systemd/*.target; do
  sed "s|/usr/bin/sluice|$bin/sluice|" "$f" >"$dir/$(basename "$f" | sed 's/@/@0/')"
done
failed=0
for unit in $units; do
  said=$(systemd-analyze verify --man=no "$dir/$unit" 2>&1) && [ -z "$said" ] || { echo "$unit: $said"; failed=1; }
  case $unit in *.target) continue ;; esac
  systemd-analyze security --offline=true --threshold=$exposure "$dir/$unit" >"$dir/score" 2>&1 || { grep ✗ "$dir/score"; failed=1; }
  tail -n 1 "$dir/score"
done
exit $failed
