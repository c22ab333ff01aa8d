#!/bin/sh
# build-tools.sh [NAME...]: build the pinned command-line tools into hack/tools/bin.
#
#   hack/build-tools.sh                     etcd, kube-apiserver and kube-controller-manager: what a test cluster needs
#   hack/build-tools.sh kube-proxy          the kube-proxy for comparison runs
#   hack/build-tools.sh kube-proxy-1.36     the one of the minor release before; kube-proxy-1.38: of the next
#   hack/build-tools.sh kube-apiserver-1.29 other API servers, for make test-skew: 1.29, 1.31, 1.33, 1.35, 1.38
#   hack/build-tools.sh staticcheck benchstat govulncheck
#   hack/build-tools.sh kube-scheduler kubelet kubectl agnhost coredns    the rest of a cluster with nodes
#   hack/build-tools.sh e2e.test ginkgo regression-issue-74839    Kubernetes' own test suite for clusters, the command that
#                                           runs it in several processes, and a server of one of its tests
#   hack/build-tools.sh flannel bridge host-local loopback portmap    the pod network flannel, and the CNI plugins that pods
#                                           need with it
#   hack/build-tools.sh metallb-controller metallb-speaker    the announcer of load balancers MetalLB
#   hack/build-tools.sh kube-network-policies kube-router    network policy engines; the second is a pod network, too
#
# With KUBERNETES=1.38 Kubernetes' programs are those of the next minor release, and all go into hack/tools/bin/1.38.
#
# Versions are those of the go.mod of hack/tools, hack/kube*, hack/dns, hack/flannel, hack/cni, hack/policies,
# hack/metallb, hack/lint and hack/vuln. Where a go.mod names a toolchain, the go command fetches it, even with
# GOTOOLCHAIN=local. A binary that was already built from the same go.mod, go.sum, directories that replace modules and
# Go release is left alone, so calling this costs milliseconds; from cold each of the kube-* binaries takes one to three
# minutes on two cores. Calls that overlap wait for each other, since each build takes all cores anyway.
set -eu

root=$(cd "$(dirname "$0")" && pwd)
bin=$root/tools/bin kubernetes=tools
case ${KUBERNETES:-1.37} in
1.37) ;;
1.38)
	bin=$bin/$KUBERNETES kubernetes=kubernetes-$KUBERNETES ;;
*)
	echo "$0: KUBERNETES=$KUBERNETES: want 1.37 or 1.38" >&2
	exit 2 ;;
esac

if [ $# -eq 0 ]; then
	set -- etcd kube-apiserver kube-controller-manager
fi

# stamp_version adds to flags the version of kubernetes in $module. Without it the binaries report v0.0.0-master, and
# clients that ask for the version see that.
stamp_version() {
	version=$(sed -n 's|^.*k8s.io/kubernetes \(v[^ ]*\).*|\1|p' "$root/$module/go.mod")
	minor=${version#v1.}
	for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		flags="$flags -X $p.gitVersion=$version -X $p.gitMajor=1 -X $p.gitMinor=${minor%%.*}"
	done
}

# source_of NAME: sets module (a directory here), package, flags (for the linker), build (the go command) and cgo.
source_of() {
	flags='-s -w' build=build cgo=0
	case $1 in
	etcd)
		module=$kubernetes package=go.etcd.io/etcd/server/v3 ;;
	kube-apiserver | kube-controller-manager | kube-scheduler | kube-proxy | kubelet | kubectl)
		module=$kubernetes package=k8s.io/kubernetes/cmd/$1
		[ $kubernetes = tools ] || [ $1 != kube-proxy ] || module=kube-proxy-$KUBERNETES
		stamp_version ;;
	kube-apiserver-1.29 | kube-apiserver-1.31 | kube-apiserver-1.33 | kube-apiserver-1.35)
		module=$1 package=k8s.io/kubernetes/cmd/kube-apiserver
		# Without it, 1.29 has the cloud providers of that time, with modules that not every proxy has.
		[ $1 != kube-apiserver-1.29 ] || build='build -tags=providerless'
		stamp_version ;;
	kube-apiserver-1.38)
		module=kubernetes-1.38 package=k8s.io/kubernetes/cmd/kube-apiserver
		stamp_version ;;
	kube-proxy-1.36 | kube-proxy-1.38)
		module=$1 package=k8s.io/kubernetes/cmd/kube-proxy
		stamp_version ;;
	e2e.test)
		module=$kubernetes package=k8s.io/kubernetes/test/e2e build='test -c -vet=off'
		stamp_version ;;
	agnhost)
		module=$kubernetes package=k8s.io/kubernetes/test/images/agnhost ;;
	regression-issue-74839)
		module=$kubernetes package=k8s.io/kubernetes/test/images/$1 ;;
	ginkgo)
		# The command and the suite must be of one version.
		module=$kubernetes package=github.com/onsi/ginkgo/v2/ginkgo ;;
	coredns)
		module=dns package=github.com/coredns/coredns ;;
	flannel)
		# Its backend for UDP is in C.
		module=flannel package=github.com/flannel-io/flannel cgo=1 build='build -tags=netgo,osusergo'
		flags="$flags -linkmode=external -extldflags=-static"
		flags="$flags -X github.com/flannel-io/flannel/pkg/version.Version=$(sed -n 's|^.*github.com/flannel-io/flannel \(v[0-9.]*\).*|\1|p' "$root/$module/go.mod")" ;;
	bridge | loopback)
		module=cni package=github.com/containernetworking/plugins/plugins/main/$1 ;;
	portmap)
		module=cni package=github.com/containernetworking/plugins/plugins/meta/$1 ;;
	host-local)
		module=cni package=github.com/containernetworking/plugins/plugins/ipam/$1 ;;
	kube-network-policies)
		module=policies package=sigs.k8s.io/kube-network-policies/cmd ;;
	kube-router)
		module=kube-router package=github.com/cloudnativelabs/kube-router/v2/cmd/kube-router ;;
	metallb-controller | metallb-speaker)
		module=metallb package=go.universe.tf/metallb/${1#metallb-} ;;
	staticcheck)
		module=lint package=honnef.co/go/tools/cmd/staticcheck ;;
	govulncheck)
		module=vuln package=golang.org/x/vuln/cmd/govulncheck ;;
	benchstat)
		module=lint package=golang.org/x/perf/cmd/benchstat ;;
	*)
		echo "$0: no tool is called $1" >&2
		exit 2 ;;
	esac
}

# The environment of a caller that builds for another system, or with cgo, must not leak into binaries that run here.
unset GOOS GOARCH
export GOWORK=off
chosen=${GOTOOLCHAIN:-}

mkdir -p "$bin"
exec 9>"$bin/.lock"
flock 9

# pinned prints the files of $module that say what is built: its pins, and the directories that replace modules.
pinned() (
	cd "$root/$module"
	cat go.mod go.sum
	for directory in $(sed -n 's|.* => \(\.[^ ]*\)$|\1|p' go.mod); do
		find "$directory" -name go.mod -o -name '*.go' | LC_ALL=C sort | xargs cat
	done
)

for name in "$@"; do
	source_of "$name"
	[ ! -x "$root/$module/stand-ins.sh" ] || "$root/$module/stand-ins.sh"
	export GOTOOLCHAIN="$chosen"
	! grep -q '^toolchain ' "$root/$module/go.mod" || GOTOOLCHAIN=auto
	release=$(go -C "$root/$module" env GOVERSION)
	stamp=$( { echo "$release $package $flags"; pinned; } | sha256sum | cut -d' ' -f1)
	if [ -x "$bin/$name" ] && [ "$(cat "$bin/.$name.stamp" 2>/dev/null)" = "$stamp" ]; then
		continue
	fi
	echo "building $name ($package); from cold this takes minutes" >&2
	rm -f "$bin/.$name.stamp"
	(cd "$root/$module" && CGO_ENABLED=$cgo nice go $build -trimpath -ldflags "$flags" -o "$bin/.$name.new" "$package")
	mv "$bin/.$name.new" "$bin/$name"
	echo "$stamp" >"$bin/.$name.stamp"
done
