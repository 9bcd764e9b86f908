#!/bin/sh
# Traffic: orders of twenty customers, about RATE a second, until it is stopped.
set -eu
number=0
while :; do
  burst=0
  while [ "$burst" -lt "${RATE:-20}" ]; do
    number=$((number + 1)) burst=$((burst + 1))
    printf 'customer-%d:{"order": %d, "cents": %d}\n' $((number % 20)) "$number" $((number * 7919 % 10000))
  done
  sleep 1
done | kcat -b "$BOOTSTRAP" -t "$TOPIC" -P -K : -X enable.idempotence=true
