#!/usr/bin/env bash
# tests/deploy/check_texts.sh ROOT BIN - what the programs write of themselves: the committed config files are theirs,
# and the manual pages have no fault that mandoc knows (77, skipped, without it).
set -u
root=$1 bin=$2 failed=0

for duty in router prefill decode; do
  "$bin/sluice-$duty" --example-config | diff -u "$root/deploy/conf/$duty.conf" - ||
    { echo "deploy/conf/$duty.conf is not what the program says; write it anew: sluice-$duty --example-config >deploy/conf/$duty.conf"; failed=1; }
done
[ $failed = 0 ] || exit 1

command -v mandoc >/dev/null || { echo "mandoc is not here; the manual pages are not checked"; exit 77; }
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
for program in sluice-router sluice-prefill sluice-decode; do "$bin/$program" --manual >"$dir/$program.8" || exit 1; done
for program in sluicectl sluice-bench; do "$bin/$program" manual >"$dir/$program.1" || exit 1; done
for page in "$dir"/*; do
  # pages of one another are found only where they are installed
  mandoc -Tlint "$page" 2>/dev/null | grep -v 'referenced manual not found' && failed=1
done
exit $failed
