#!/bin/sh
# One member of a group: says what it reads. SIGTERM makes it leave.
set -eu
# kcat gives up on a topic that nobody has written to yet.
until kcat -b "$BOOTSTRAP" -L -t "$TOPIC" 2>/dev/null | grep -q 'partition 0, leader'; do
  sleep 1
done
exec kcat -b "$BOOTSTRAP" -X auto.offset.reset=earliest -X client.id="${HOSTNAME:-consumer}" -u \
  -f '%t [%p] offset %o: %k %s\n' -G "$GROUP" "$TOPIC"
