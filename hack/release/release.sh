#!/bin/sh
# release.sh: write the files of a release into bin/release/TAG: binaries and image for amd64 and arm64, manifests, the Helm
# chart, the list of modules (SPDX) and checksums. `make release` calls it.
#
# It builds a clean clone of the commit that is checked out, so the files have what is committed and nothing else. The same
# commit and the same release of Go give the same bytes, wherever and whenever. The commit needs a tag vMAJOR.MINOR.PATCH; with
# SNAPSHOT=1 the version is the one that Go derives from the last tag.
#
# IMAGE is the name of the image, without the tag (localhost/nftproxy). DOWNLOADS is the address of the folder from which people
# get the files of this release; with it there is a manifest of the plugin for krew, too.
set -eu

root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
image=${IMAGE:-localhost/nftproxy}
commit=$(git -C "$root" rev-parse HEAD)
if [ -z "${SNAPSHOT:-}" ]; then
	git -C "$root" describe --exact-match --tags --match 'v[0-9]*' HEAD >/dev/null || {
		echo "$0: this commit has no tag such as v1.2.3: see CONTRIBUTING.md, or set SNAPSHOT=1" >&2
		exit 1
	}
fi
if [ -n "$(git -C "$root" status --porcelain)" ]; then
	echo "$0: the working tree has changes that are not committed; the release will not have them" >&2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# In a clone .git is a folder, which Go needs to stamp the version; in a worktree it is a file.
git clone --quiet "$root" "$work/src"
git -C "$work/src" checkout --quiet --detach "$commit"
cd "$work/src"

unset GOOS GOARCH GOARM64 GOAMD64
export CGO_ENABLED=0 GOFLAGS= GOWORK=off
tool=$work/tool
go -C hack/release build -o "$tool" .
go -C hack/helm build -o "$work/helm" .

out=$work/out
mkdir "$out"
for arch in amd64 arm64; do
	echo "building nftproxy-linux-$arch"
	GOOS=linux GOARCH=$arch go build -buildvcs=true -trimpath -ldflags "-s -w" -o "$out/nftproxy-linux-$arch" ./cmd/nftproxy
done
for system in linux darwin windows; do
	for arch in amd64 arm64; do
		name=kubectl-nftproxy-$system-$arch
		echo "building $name"
		binary=kubectl-nftproxy
		[ $system != windows ] || binary=kubectl-nftproxy.exe
		GOOS=$system GOARCH=$arch go build -buildvcs=true -trimpath -ldflags "-s -w" -o "$work/plugin/$name/$binary" ./cmd/kubectl-nftproxy
		cp LICENSE "$work/plugin/$name"
		# The same bytes from the same files: krew holds a release to its checksum.
		tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work/plugin/$name" -cf - . | gzip -n >"$out/$name.tar.gz"
	done
done
version=$(go version -m "$out/nftproxy-linux-amd64" | awk '$1 == "mod" { print $3 }')
tag=$(echo "$version" | tr + -) # a tag of an image has no "+"

cd "$out"
"$tool" image --name "$image:$tag" -o nftproxy-image.tar nftproxy-linux-amd64 nftproxy-linux-arm64
"$tool" sbom nftproxy-linux-amd64 nftproxy-linux-arm64 >nftproxy.spdx.json
for folder in overlays/kubeadm overlays/trial overlays/gated cleanup/nftproxy cleanup/kube-proxy; do
	"$tool" manifest --image "$image:$tag" "$work/src/deploy/$folder" >"$(echo "$folder" | sed 's|^overlays/|nftproxy-|; s|/|-|').yaml"
done
"$work/helm" package --version "$version" --repository "$image" --tag "$tag" "$work/src/deploy/helm"
if [ -n "${DOWNLOADS:-}" ]; then
	"$work/src/hack/release/krew.sh" "$tag" "$DOWNLOADS" kubectl-nftproxy-*.tar.gz >nftproxy.krew.yaml
fi
sha256sum -- * >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" .

target=$root/bin/release/$version
rm -rf "$target"
mkdir -p "$root/bin/release"
mv "$out" "$target"
echo "$target:"
ls -l "$target"
