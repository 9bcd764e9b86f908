#!/bin/sh
# Makes what is missing in the volumes, and leaves what is there: the token of operators.
set -eu
secrets=${SECRETS:-/secrets}

if [ ! -s "$secrets/operator-token" ]; then
  umask 077
  python3 -c 'import secrets; print(secrets.token_urlsafe(32))' >"$secrets/operator-token.new"
  mv "$secrets/operator-token.new" "$secrets/operator-token"
fi
