# The university, once for each clinic: sh register.sh clinic-a
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$PWD/flower"
mkdir -p flower
cat > flower/config.toml <<END
[superlink]
default = "link"
[superlink.link]
address = "localhost:8000"
root-certificates = "$PWD/ca.pem"
END
exec flwr supernode register "$1.pub" link --name "$1"
