#!/bin/sh
# Makes the users that are missing, and leaves the others as they are: admin, who may do everything, and app, who may use
# topics and groups whose names begin with app-. A password that is not given is made, and is in $SECRETS/<user>-password.
set -eu
secrets=${SECRETS:-/secrets}
umask 077

missing() {
  ! tidegate user list -o csv | grep -q "^$1,"
}

# create USER PASSWORD
create() {
  if [ -n "$2" ]; then
    printf '%s\n' "$2" >"$secrets/$1-password"
  elif [ ! -s "$secrets/$1-password" ]; then
    python3 -c 'import secrets; print(secrets.token_urlsafe(24))' >"$secrets/$1-password"
  fi
  tidegate user create "$1" --password-file "$secrets/$1-password" --yes
}

if missing admin; then
  create admin "${ADMIN_PASSWORD:-}"
fi
if missing app; then
  for operation in READ WRITE CREATE; do
    tidegate acl add User:app "$operation" topic:app- --prefixed --yes
  done
  tidegate acl add User:app READ group:app- --prefixed --yes
  create app "${APP_PASSWORD:-}"
fi
