# Installs the Debian package named by the first argument without letting it start a daemon.
# Run by `sh -eu`. Both switches are removed again on every way out.

policy=/usr/sbin/policy-rc.d
saved=$policy.onceward-saved
clusters=/etc/postgresql-common/createcluster.d/onceward.conf

put_back() {
    rm -f "$policy" "$clusters"
    if [ -e "$saved" ]; then mv "$saved" "$policy"; fi
}
trap put_back EXIT
trap 'exit 1' HUP INT TERM

# 101 is how a policy says "not allowed" to whoever wants to start a service.
if [ -e "$policy" ]; then mv "$policy" "$saved"; fi
printf '#!/bin/sh\nexit 101\n' > "$policy"
chmod 755 "$policy"

# Debian's package would also create a cluster of its own, which nobody here uses.
mkdir -p "$(dirname "$clusters")"
echo 'create_main_cluster = false' > "$clusters"

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends "$1"
