# Each clinic: sh node.sh clinic-a
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
exec flower-supernode --superlink coordinator.example.org:8000 --root-certificates ca.pem \
    --auth-supernode-private-key "$1" --host 127.0.0.1 --port 9094 \
    --isolation process --superexec-auth-secret-file "$1.secret"
