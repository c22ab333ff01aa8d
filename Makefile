# nftproxy: each target says in one line what it does; `make help` lists them.
GO ?= go

ARCHES ?= amd64 arm64

# Everything is built in one way, without cgo as the image is: what one target compiled, the next finds in Go's cache.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS) -trimpath)

.PHONY: help build image test test-short golden conformance takeover demo bench bench-quick bench-node bench-stages cluster cluster-migrate cluster-down realcluster lint clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

build: ## build bin/nftproxy, the static binary that is in the image, and bin/kubectl-nftproxy, the plugin of kubectl
	$(GO) build -ldflags "-s -w" -o bin/nftproxy ./cmd/nftproxy
	$(GO) build -ldflags "-s -w" -o bin/kubectl-nftproxy ./cmd/kubectl-nftproxy

.PHONY: plugins
plugins: ## build the plugin of kubectl for Linux, macOS and Windows into bin/plugins
	@for system in linux darwin windows; do for arch in amd64 arm64; do \
		echo "building bin/plugins/$$system-$$arch"; \
		GOOS=$$system GOARCH=$$arch $(GO) build -ldflags "-s -w" -o bin/plugins/$$system-$$arch/ ./cmd/kubectl-nftproxy || exit 1; \
	done; done

image: ## write bin/nftproxy-image.tar, the OCI image for ARCHES (amd64 arm64), named IMAGE
	@for arch in $(ARCHES); do \
		echo "building bin/linux-$$arch/nftproxy"; \
		GOOS=linux GOARCH=$$arch $(GO) build -buildvcs=auto -ldflags "-s -w" -o bin/linux-$$arch/nftproxy ./cmd/nftproxy || exit 1; \
	done
	$(GO) -C hack/release run . image $(if $(IMAGE),--name $(IMAGE)) -o $(CURDIR)/bin/nftproxy-image.tar $(ARCHES:%=$(CURDIR)/bin/linux-%/nftproxy)

.PHONY: release
release: ## write the files of a release into bin/release: binaries, image, manifests, SBOM, checksums; from the tag, or SNAPSHOT=1
	hack/release/release.sh

test: build lint ## run every test: unit and property, as root also kernel and API server
	@test "$$(id -u)" -ne 0 || hack/build-tools.sh
	@# lint has vetted the tests, and without debugging information linking takes two thirds of the time.
	$(GO) test -timeout 30m -vet=off -ldflags="-s -w" $$($(GO) list ./... | grep -v '^nftproxy/cmd/nftproxy$$')
	@# By itself: it starts the proxy most, and waits for what that does in real time.
	$(GO) test -timeout 30m -vet=off -ldflags="-s -w" ./cmd/nftproxy
	$(GO) -C hack/release test ./...
	$(GO) -C hack/helm test ./...
	$(GO) -C hack/promql test ./...
	$(GO) -C hack/vuln test ./...

# These packages are about live systems: without root or an API server, only tests of their text and arithmetic run.
# Each is linked with client-go, which takes two seconds of CPU time. So test-short leaves them out.
live := bench|bench/control|bench/data|demo|test/lib/controlplane|test/e2e

test-short: ## run the tests that need neither root nor an API server, in fewer rounds
	SKIP_PRIVILEGED=1 $(GO) test -short -p 6 -ldflags="-s -w" $$($(GO) list ./... | grep -vE '^nftproxy/($(live))$$')

.PHONY: test-arm64 test-s390x
test-arm64: ## run the pure tests for arm64 in qemu's user mode emulation
	hack/test-arch.sh arm64

test-s390x: ## run the pure tests of what goes to the kernel for s390x, which has the other byte order, in qemu's user mode emulation
	hack/test-arch.sh s390x

.PHONY: test-page
test-page: ## show the status page in Chromium, check it by axe-core, and write screenshots into bin/screenshots
	npm --prefix hack/browser ci --ignore-scripts --no-audit --no-fund
	SCREENSHOTS=$(CURDIR)/bin/screenshots $(GO) -C hack/browser test -count=1 -timeout 30m ./...

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (30s) with one worker; FUZZ=EXPRESSION chooses by name
	hack/fuzz.sh

.PHONY: test-kernels
test-kernels: ## run the tests that need a kernel on Debian's kernels 5.10, 6.1, 6.12 and the newest of its backports in virtual machines of qemu, and write the matrix of docs/evidence/kernels.md; KERNELS=6.1 for one; PACKAGES=conntrack for some, ARCH=arm64 for the other architecture, both without the page
	$(if $(findstring test/ipvs,$(PACKAGES)),hack/build-tools.sh kube-proxy)
	$(GO) run ./test/cmd/matrix kernels $(if $(USER_MODE),--user-mode) $(if $(KERNELS),--kernels=$(KERNELS)) $(if $(PACKAGES),--packages=$(PACKAGES)) $(if $(filter-out amd64,$(ARCH)),--arch=$(ARCH),$(if $(PACKAGES),,--page=docs/evidence/kernels.md))

.PHONY: test-no-iptables
test-no-iptables: ## run the same tests and the demo on a kernel 6.12 without the modules of iptables, ipset and IPVS, as on RHEL 10, where kube-proxy's iptables mode fails, and write that table of docs/evidence/kernels.md; PACKAGES=conntrack for some
	hack/build-tools.sh kube-proxy
	$(GO) run ./test/cmd/matrix kernels --kernels=6.12-nf_tables --timeout=3h $(if $(USER_MODE),--user-mode) $(if $(PACKAGES),--packages=$(PACKAGES),--page=docs/evidence/kernels.md)

.PHONY: on-kernel
on-kernel: ## run COMMAND as root on Debian's KERNEL=6.12, 6.1, 5.10 or newest, each also with -nf_tables for nothing of iptables, among this computer's files, mounted read-only: COMMAND='bin/realcluster up --nodes=1'; KVM=1 where there is /dev/kvm, USER_MODE=1 for the kernel as a program of this computer
	$(GO) run ./test/cmd/matrix run --kernel=$(or $(KERNEL),6.12) $(if $(KVM),--kvm) $(if $(USER_MODE),--user-mode) --timeout=6h sh -c "$$COMMAND"

.PHONY: test-kernels-short
test-kernels-short: ## run the tests of the packages that talk most to the kernel on 5.10, the oldest one: after a change of what is sent to the kernel, and before a release
	$(GO) run ./test/cmd/matrix kernels --kernels=5.10 --packages=nft/kernel,nft/livetrace,conntrack,look/preflight

.PHONY: test-nft
test-nft: ## have the nft of Debian's bullseye, bookworm and trixie list our tables and take them back, and write the table of docs/evidence/kernels.md; as root
	$(GO) run ./test/cmd/matrix nft --page=docs/evidence/kernels.md

FAULT_TIME ?= 1m

SKEW ?= 1.29,1.31,1.33,1.35,newest

.PHONY: test-skew
test-skew: ## list, watch, restart, outage, absent fields and the policy about options with real kube-apiservers of SKEW=1.29,1.31,1.33,1.35,newest, which are built once; as root
	hack/build-tools.sh
	hack/build-tools.sh $(filter kube-apiserver-1.%,$(addprefix kube-apiserver-,$(shell echo $(SKEW) | tr , ' ')))
	NFTPROXY_SKEW=$(SKEW) $(GO) test -count=1 -timeout 30m -v -run 'TestSkew|TestValidateOptions|TestAbsentFieldsOnAPIServers' ./test/e2e ./watch

.PHONY: faults
faults: ## let single answers of the kernel go wrong, in each way at each kind of message, and random ones for FAULT_TIME=1m; SEED=n repeats a run; as root
	FAULTS=all FAULT_TIME=$(FAULT_TIME) $(GO) test -count=1 -timeout 10h -v -run 'Fault|StuckDump' ./nft/kernel ./conntrack ./daemon/proxy

golden: ## write the golden files again: what of deploy is made from deploy/helm, programs, pages of docs/services, docs/options.md, docs/metrics.md, docs/troubleshooting.md (as root), docs/internals/dependencies.md; look at the diff
	$(GO) test ./test/scenario -run 'TestInterpreter|TestPages' -update
	$(GO) test ./nft/ruleset -run TestGolden -update
	$(GO) test ./watch -run TestGolden -update
	$(GO) test ./daemon/metrics -run TestPage -update
	$(GO) test ./cmd/nftproxy -run 'TestOptionsPage|TestTroubleshooting|TestGet$$|TestChartFlags' -update
	$(GO) test ./look/inspect -run TestDraining -update
	$(GO) test . -run TestDependencies -update
	$(GO) -C hack/helm test ./chart -update

conformance: build ## run every scenario beside the real kube-proxy, and print what differs
	hack/build-tools.sh
	hack/build-tools.sh kube-proxy$(if $(filter-out 1.37,$(KUBE_PROXY)),-$(KUBE_PROXY))
	NFTPROXY_CONFORMANCE=1 $(GO) test -count=1 -timeout 30m -v -run 'TestConformance|TestDifferences|TestKubeProxyMetrics' ./test/e2e

ROUNDS ?= 20

takeover: build ## replace the real kube-proxy and go back, ROUNDS=20 times in each of its modes, under traffic; 25 min
	hack/build-tools.sh
	hack/build-tools.sh kube-proxy
	NFTPROXY_TAKEOVER=$(ROUNDS) $(GO) test -count=1 -timeout 60m -v -run 'TestTakeover|TestLeftovers' ./test/e2e

SOAK ?= 1h

.PHONY: soak
soak: build ## random events for SOAK=1h under traffic, and the tables checked after each round; SEED=n repeats the events of a run, SCRIPT=file plays a kept script, REDUCE=1 cuts it down, OLDER=commit has upgrades from there; as root
	hack/build-tools.sh
	$(GO) build -o bin/soak ./test/cmd/soak
	$(if $(OLDER),rm -rf bin/older && mkdir -p bin/older && git archive $(OLDER) | tar -x -C bin/older && $(GO) -C bin/older build -o $(CURDIR)/bin/nftproxy-older ./cmd/nftproxy)
	bin/soak --for=$(SOAK) $(if $(OLDER),--older=bin/nftproxy-older --older-commit=$(OLDER)) $(if $(SEED),--seed=$(SEED)) $(if $(SCRIPT),--script=$(SCRIPT)) $(if $(REDUCE),--reduce)

.PHONY: neighbours
neighbours: build ## run nftproxy beside real firewalls and other programs of a node, and write docs/neighbours.md; NEIGHBOUR=firewalld for one; as root
	$(GO) build -o bin/neighbours ./test/cmd/neighbours
	bin/neighbours $(if $(NEIGHBOUR),--only=$(NEIGHBOUR)) $(if $(CALICO),--calico=$(CALICO))

.PHONY: neighbours-short
neighbours-short: build ## run nftproxy beside two real programs of a node, without load, as CI does: no page is written
	$(GO) build -o bin/neighbours ./test/cmd/neighbours
	bin/neighbours --only=nftables-default,keepalived --small --quiet --at-once=20 --patience=1m --attempts=3 --docs=bin/neighbours-short

demo: build ## show the proxy at work on real traffic, without a cluster
	$(GO) build -ldflags "-s -w" -o bin/demo ./demo
	bin/demo

bench: build ## compare with all modes of kube-proxy and the bare kernel, in one run; writes docs/bench; an hour, as root
	hack/build-tools.sh
	hack/build-tools.sh kube-proxy$(if $(filter-out 1.37,$(KUBE_PROXY)),-$(KUBE_PROXY))
	$(GO) run ./bench
	$(GO) run ./bench show docs/bench/report.json >docs/bench/tables.txt

bench-quick: build ## the same at the smallest size, in a few minutes
	hack/build-tools.sh
	hack/build-tools.sh kube-proxy$(if $(filter-out 1.37,$(KUBE_PROXY)),-$(KUBE_PROXY))
	$(GO) run ./bench --quick

bench-node: build ## of these, what a node pays beside kube-proxy in nftables mode: CPU of changes, start, memory; writes bin/bench; 10 min, as root
	hack/build-tools.sh
	hack/build-tools.sh kube-proxy$(if $(filter-out 1.37,$(KUBE_PROXY)),-$(KUBE_PROXY))
	$(GO) run ./bench --only node --proxy nftproxy --proxy "kube-proxy nftables" --out bin/bench

bench-stages: ## benchmark each stage (decoding, compile, plan, encode, apply, dump), with allocations
	$(GO) test -run '^$$' -bench . -benchmem ./model/treap ./model/snapshots ./watch ./nft/ruleset ./nft/kernel ./daemon/affinity ./conntrack

CHANGES ?= 1000000

.PHONY: endurance
endurance: ## make CHANGES=1000000 changes of Services and endpoints, and let three days pass: nothing grows; ten minutes, as root; a picture in bin
	mkdir -p bin
	NFTPROXY_ENDURANCE=$(CHANGES) NFTPROXY_ENDURANCE_OUT=$(CURDIR)/bin/endurance $(GO) test -count=1 -timeout 10h -v -run 'TestEndurance|TestThreeDays' ./test/endurance

NODES ?= $(if $(E2E),6,3)

cluster: realcluster ## bring up a real Kubernetes cluster with nftproxy on this computer, and try it; E2E=1: by Kubernetes' own tests, too; CNI=flannel or kube-router: with that as the pods' network, CNI=other-ranges: with pods outside the Nodes' podCIDRs; POLICIES=kube-network-policies or kube-router: with that network policy engine; ANNOUNCER=metallb: with that for load balancers; KUBERNETES=1.38: of the next release
	bin/realcluster up --nodes=$(NODES) $(if $(E2E),--e2e) $(if $(CNI),--cni=$(CNI)) $(if $(POLICIES),--policies=$(POLICIES)) $(if $(ANNOUNCER),--announcer=$(ANNOUNCER))
	bin/realcluster smoke
	bin/realcluster trouble
	$(if $(E2E),bin/realcluster e2e)

cluster-migrate: realcluster ## go from kube-proxy to nftproxy and back by docs/migrate.md, and by kubectl nftproxy migrate, on a real cluster, under load, in two modes of kube-proxy
	for mode in nftables iptables; do \
		bin/realcluster up --proxy=kube-proxy --kube-proxy-mode=$$mode && bin/realcluster migrate && \
		bin/realcluster migrate --by=plugin && bin/realcluster down || exit 1; \
	done

realcluster:
	$(MAKE) image ARCHES=$$($(GO) env GOARCH)
	$(GO) -C hack/helm build -o $(CURDIR)/bin/helm .
	$(GO) build -ldflags "-s -w" -o bin/kubectl-nftproxy ./cmd/kubectl-nftproxy
	$(GO) build -ldflags "-s -w" -o bin/realcluster ./test/cmd/realcluster

cluster-down: ## end the cluster of make cluster, and remove everything that it left
	$(GO) build -ldflags "-s -w" -o bin/realcluster ./test/cmd/realcluster
	bin/realcluster down

lint: ## gofmt, go vet and staticcheck at its pinned version
	@unformatted=$$(gofmt -l .) && test -z "$$unformatted" || { echo "not gofmt-clean:"; echo "$$unformatted"; exit 1; }
	$(GO) vet ./...
	hack/build-tools.sh staticcheck
	hack/tools/bin/staticcheck ./...

.PHONY: vulncheck
vulncheck: ## look for known vulnerabilities in the code that the binary can reach; VULNDB: the database, https://vuln.go.dev or file:///DIRECTORY
	hack/vulncheck.sh ./cmd/nftproxy

clean: ## remove what build made
	rm -rf bin
