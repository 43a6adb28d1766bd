# Each clinic, once: sh keys.sh clinic-a
set -e
umask 077
ssh-keygen -q -t ecdsa -b 384 -N "" -C "$1" -f "$1"
openssl rand -out "$1.secret" 32
