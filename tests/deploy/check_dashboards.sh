#!/usr/bin/env bash
# tests/deploy/check_dashboards.sh ROOT BIN - what deploy/dashboards has for Prometheus is understood by it, and every alert fires where it should.
# cluster.metrics holds the names against what a router tells. 77 (skipped) without promtool.
set -u
root=$1
command -v promtool >/dev/null || { echo "promtool (Debian: prometheus) is not here; the rules are not checked"; exit 77; }
promtool check config "$root/deploy/dashboards/prometheus.yml" || exit 1
promtool test rules "$root/tests/deploy/sluice.rules.test.yml" || exit 1
for alert in $(sed -n 's/.*alert: //p' "$root/deploy/dashboards/sluice.rules.yml"); do
  grep -q "alertname: $alert\$" "$root/tests/deploy/sluice.rules.test.yml" || { echo "no test makes $alert fire"; exit 1; }
done
