#!/bin/sh
# Makes an authority and, signed by it, a certificate for NAMES (openssl's subjectAltName), for a year. What is there and
# has a week left stays. Brokers take a new certificate within seconds; the authority is what clients trust: ca.pem.
set -eu
cd "${CERTIFICATES:-/certificates}"
umask 077

if [ ! -s ca.pem ] || [ ! -s ca.key ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 -subj '/CN=Tidegate on this machine' \
    -keyout ca.key -out ca.pem
fi

if [ -s broker.pem ] && openssl x509 -in broker.pem -noout -checkend 604800 \
    && [ "$(cat names 2>/dev/null)" = "$NAMES" ]; then
  exit 0
fi
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "$NAMES" >extensions
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj '/CN=tidegate' -keyout new.key -out new.csr
openssl x509 -req -in new.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 -extfile extensions -out new.pem
mv new.key broker.key
mv new.pem broker.pem
printf '%s' "$NAMES" >names
rm extensions new.csr
