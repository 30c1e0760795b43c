#!/bin/sh
# Renews the token of an edge outside the cluster, long before it expires. The agent takes the new one by itself.
# usage: renew-token.sh DIRECTORY API_SERVER [ACCOUNT]     for example /etc/guideway https://198.51.100.10:6443
# deploy/systemd/guideway-token.timer runs it every hour.
set -eu
umask 077
cd "$1"
server=$2 account=${3:-guideway-outside} namespace=${POD_NAMESPACE:-guideway-system}

# Not on the command line, which every user of the machine may read. And by https only: for a server without a scheme,
# curl takes http.
printf 'Authorization: Bearer %s\n' "$(cat token)" >token.header
trap 'rm -f token.header token.new' EXIT
curl --proto =https --silent --show-error --fail --max-time 30 --cacert ca.crt \
    --header @token.header --header 'Content-Type: application/json' \
    --data '{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 604800,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": "'"$account"'"}}}' \
    "$server/api/v1/namespaces/$namespace/serviceaccounts/$account/token" |
    tr -d '\n' | sed -n 's/.*"token": *"\([^"]*\)".*/\1/p' >token.new
[ -s token.new ] || { echo "$server gave no token" >&2; exit 1; }
mv token.new token
