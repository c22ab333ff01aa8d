#!/bin/sh
# test-arch.sh ARCH: run the tests of packages that touch nothing outside the process, built for another architecture, in
# qemu's user mode emulation. As root it installs Debian's qemu-user-static where that is missing.
#
# qemu has no netlink sockets of netfilter, so tests that need a kernel are left out.
set -eu
export SKIP_PRIVILEGED=1
cd "$(dirname "$0")/.."
arch=$1

case $arch in
arm64) # the other architecture of the image
	qemu=qemu-aarch64-static packages='./nft ./nft/ruleset ./model/...' ;;
s390x) # the other byte order: netlink has the host's, what nftables compares has the network's
	qemu=qemu-s390x-static packages='./nft ./nft/kernel ./conntrack ./model/service' ;;
*)
	echo "$0: ARCH is arm64 or s390x, not $arch" >&2
	exit 1 ;;
esac
if [ "$(go env GOHOSTARCH)" = "$arch" ]; then
	exec go test -short $packages
fi
if ! command -v "$qemu" >/dev/null; then
	[ "$(id -u)" -eq 0 ] || { echo "$0: there is no $qemu; install qemu-user-static" >&2; exit 1; }
	apt-get -q update >&2
	DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends qemu-user-static >&2
fi
GOARCH=$arch CGO_ENABLED=0 go test -short -timeout 30m -exec "$qemu" $packages
