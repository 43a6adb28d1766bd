# The university, once: sh certificates.sh coordinator.example.org
set -e
umask 077
curve="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 365"
openssl req -x509 $curve -keyout ca.key -out ca.pem -subj "/CN=three clinics"
openssl req -x509 $curve -CA ca.pem -CAkey ca.key -keyout link.key -out link.pem \
    -subj "/CN=$1" -addext "subjectAltName=DNS:$1,DNS:localhost" \
    -addext "basicConstraints=critical,CA:FALSE"
openssl rand -out link.secret 32
