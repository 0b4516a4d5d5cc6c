#!/bin/sh
# Creates the RayJob of last night (UTC), or of $NIGHT, and stays until it has ended: while this runs, Forbid keeps a
# second scan away. A scan goes on where the one before it stopped, so it is tried again, but not when it was refused (2),
# when its audit alarmed (3), nothing was read or too much is in quarantine (4), or canaries were lost (5): a second run
# would find nothing left to do, and alarm again (3, 5) or even say 0 (4).
set -eu
template="${TEMPLATE:-/etc/brickscan/submit/rayjob.yaml}"
night="${NIGHT:-$(date -u -d "@$(($(date +%s) - 86400))" +%Y-%m-%d)}"
attempt=1
while [ "$attempt" -le 3 ]; do
    job=$(sed "s/DATE/$night/g" "$template" | kubectl create -f - -o name)
    echo "night $night, attempt $attempt: $job"
    while :; do
        state=$(kubectl get "$job" -o 'jsonpath={.status.jobDeploymentStatus}' || echo unknown)
        case "$state" in
            Complete) echo "$job is done"; exit 0 ;;
            Failed) break ;;
        esac
        sleep "${WAIT:-20}"
    done
    message=$(kubectl get "$job" -o 'jsonpath={.status.message}')
    echo "$job failed: $message"
    case "$message" in
        *"failed with exit code "[2345][,.]*) exit 1 ;;
    esac
    attempt=$((attempt + 1))
done
exit 1
