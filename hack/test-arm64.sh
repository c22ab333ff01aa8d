#!/bin/sh
# test-arm64.sh: run the tests of the packages that touch nothing outside the process, built for arm64, in qemu's user mode
# emulation. As root it installs Debian's qemu-user-static where that is missing.
#
# qemu has no netlink sockets of netfilter, so tests that need a kernel are left out.
set -eu
export SKIP_PRIVILEGED=1
cd "$(dirname "$0")/.."

if [ "$(go env GOHOSTARCH)" = arm64 ]; then
	exec go test -short ./nft ./nft/ruleset ./model/...
fi
if ! command -v qemu-aarch64-static >/dev/null; then
	[ "$(id -u)" -eq 0 ] || { echo "$0: there is no qemu-aarch64-static; install qemu-user-static" >&2; exit 1; }
	apt-get -q update >&2
	DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends qemu-user-static >&2
fi
GOARCH=arm64 CGO_ENABLED=0 go test -short -timeout 30m -exec qemu-aarch64-static ./nft ./nft/ruleset ./model/...
