#!/bin/sh
# krew.sh VERSION ADDRESS FILE...: print the manifest by which krew installs the plugin of kubectl from the files
# kubectl-nftproxy-SYSTEM-ARCH.tar.gz, which people get from ADDRESS.
set -eu

version=$1 address=$2
shift 2
cat <<EOF
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: nftproxy
spec:
  version: $version
  shortDescription: Ask the nftproxy of all nodes
  description: |
    Says which nodes are not right, why a pod does not reach a Service, and collects what to send to somebody who
    helps, in a cluster whose service proxy is nftproxy.
  platforms:
EOF
for file in "$@"; do
	name=${file#kubectl-nftproxy-}
	name=${name%.tar.gz}
	binary=kubectl-nftproxy
	[ "${name%-*}" != windows ] || binary=kubectl-nftproxy.exe
	cat <<EOF
    - selector:
        matchLabels: {os: ${name%-*}, arch: ${name#*-}}
      uri: ${address%/}/$file
      sha256: $(sha256sum "$file" | cut -d' ' -f1)
      bin: $binary
EOF
done
