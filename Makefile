# nftproxy: each target says in one line what it does; `make help` lists them.
GO ?= go

.PHONY: help build test test-short demo bench bench-quick lint clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

build: ## build bin/nftproxy, a static binary
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/nftproxy ./cmd/nftproxy

test: build lint ## run every test: unit, property, kernel (as root) and API server
	hack/build-tools.sh
	$(GO) test -timeout 30m ./...

test-short: ## run the tests that need neither root nor an API server
	$(GO) test -short ./...

demo: build ## show the proxy at work on real traffic, without a cluster
	bin/nftproxy demo

bench: build ## measure, against kube-proxy in the same run
	hack/build-tools.sh
	hack/build-tools.sh kube-proxy
	$(GO) run ./bench

lint: ## gofmt, go vet and staticcheck at its pinned version
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not gofmt-clean:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	hack/build-tools.sh staticcheck
	hack/tools/bin/staticcheck ./...

clean: ## remove what build made
	rm -rf bin
