#!/bin/sh
# Runs a command while RCU grace periods of the kernel are short, and puts the setting back. Tests wait for thousands of
# them: whenever a namespace, a device or a program goes, and with each change of a table. Where the setting cannot be
# written, as in most containers, the command takes longer. See rcupdate.rcu_expedited in the kernel's
# Documentation/admin-guide/kernel-parameters.txt.
#
# usage: deploy/expedited.sh COMMAND [ARGUMENT...]
set -eu

SETTING=/sys/kernel/rcu_expedited

as_root=
[ "$(id -u)" -eq 0 ] || as_root=sudo

put() {
    echo "$1" | $as_root tee "$SETTING" >/dev/null 2>&1
}

former=$(cat "$SETTING" 2>/dev/null || echo 0)
if put 1; then
    trap 'put "$former"' EXIT
    trap 'exit 1' INT TERM
    echo "expedited: grace periods are short until the tests are over ($SETTING)"
else
    echo "expedited: $SETTING cannot be written: tests take longer" >&2
fi
"$@"
