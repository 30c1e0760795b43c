#!/bin/sh
# Announces the VIPs while the agent of this machine is healthy: enables and
# disables BIRD's protocol `vips` (bird.conf) by what the agent says.
#
# usage: announce-while-healthy.sh [URL]
#
# The default is for services from a file. With `guideway run --kubernetes` ask
# /readyz at kubernetes.healthz, which fails until the first state is in the tables.
set -u

url=${1:-http://127.0.0.1:9750/healthz}

while :; do
    if curl -sf -m 2 -o /dev/null "$url"; then
        wanted=enable
    else
        wanted=disable
    fi
    # Each time: BIRD may have been restarted meanwhile.
    birdc "$wanted" vips >/dev/null
    sleep 1
done
