# The university: sh link.sh
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
exec flower-superlink --host 0.0.0.0 --port 8000 --database link.db \
    --ssl-ca-certfile ca.pem --ssl-certfile link.pem --ssl-keyfile link.key \
    --enable-supernode-auth --disable-runtime-dependency-installation \
    --isolation process --superexec-auth-secret-file link.secret
