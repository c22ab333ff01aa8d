package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/testnet"
)

// ErrInterrupted says that the context ended before the demo did. The demo has then
// removed everything, as it always does.
var ErrInterrupted = errors.New("interrupted")

// Config says what to show and where.
type Config struct {
	// Out gets the output. Colours and progress go only to a terminal.
	Out io.Writer
	// Executable is the nftproxy to run.
	Executable string
	// FullTable prints the whole tables instead of as much as fits on a screen.
	FullTable bool

	// manifests has the templates in a directory with that name; nil means the built-in
	// ones.
	manifests fs.FS
}

// Run plays the scenario, until the context ends. It needs CAP_SYS_ADMIN, CAP_NET_ADMIN
// and CAP_NET_RAW, which root of a user namespace has. Run removes everything before it
// returns. The error is nil only if every claim held. It matches ErrInterrupted if the
// context ended.
func Run(ctx context.Context, c Config) error {
	if c.manifests == nil {
		c.manifests = embeddedManifests
	}
	start := time.Now()
	s := newScreen(c.Out, os.Getenv)
	s.line("")
	s.line(s.style.bold("nftproxy demo") + ": a Kubernetes node made of network namespaces, the real proxy,")
	s.line("real traffic and no cluster. This machine's own network is not touched.")
	w := &world{config: c}
	failed := play(ctx, s, w, scenario())
	stopped := w.stopProxy()
	cleaned := w.close()
	switch {
	case ctx.Err() != nil:
		failed = ErrInterrupted
	case failed == nil:
		failed = stopped
	}
	if failed != nil && !errors.Is(failed, ErrInterrupted) {
		s.show(explain(failed)...)
		s.show(w.proxyLog()...)
	}
	s.conclude(w, time.Since(start), failed, cleaned)
	return errors.Join(failed, cleaned)
}

// conclude prints how the demo ended.
func (s *screen) conclude(w *world, took time.Duration, failed, cleaned error) {
	s.line("")
	switch {
	case cleaned != nil:
		s.line(fmt.Sprintf("%s: %v", s.style.bad("Could not remove everything"), cleaned))
	case errors.Is(failed, ErrInterrupted):
		s.line("Interrupted. Everything is removed again.")
	case failed != nil:
		s.line(s.style.bad("Not as it should be.") + " Everything is removed again.")
	default:
		s.line(fmt.Sprintf("%s %d checks in %.1f s. Everything is removed again.",
			s.style.good("All as it should be:"), w.held, took.Seconds()))
		s.line("On a real node: nftproxy run --help")
	}
}

// world is the network, the manifests and the proxy of the scenario.
type world struct {
	checks
	config Config

	net    *testnet.Topology
	client *testnet.Pod
	// tables reads the node's nftables.
	tables *kernel.Conn
	// dir holds the manifests.
	dir   string
	proxy *process

	// ready are the pods behind the service that the manifests list, by age.
	ready []*backend
	// made is the number of backend pods so far.
	made int
	// versions are the pods of default/canary.
	versions [2]*testnet.Pod
	// updates are the changes so far. programs are the programs that were wanted
	// meanwhile.
	updates  []update
	programs []*nft.Program
	// asked is what the manifests ask for, by the last of them.
	asked service.Snapshot
}

// alive expects that the proxy runs, if it was started.
func (w *world) alive() error {
	if w.proxy == nil {
		return nil
	}
	return w.proxy.alive()
}

// stopProxy asks the proxy to end, if it was started, and expects that it ends cleanly.
func (w *world) stopProxy() error {
	if w.proxy == nil {
		return nil
	}
	return w.proxy.stop()
}

// close removes the network and the manifests. The proxy must have ended.
func (w *world) close() error {
	var errs []error
	if w.tables != nil {
		errs = append(errs, w.tables.Close())
	}
	if w.net != nil {
		errs = append(errs, w.net.Close())
	}
	if w.dir != "" {
		errs = append(errs, os.RemoveAll(w.dir))
	}
	return errors.Join(errs...)
}

// proxyLog returns the warnings and errors in the proxy's log: they may explain the
// failure of a step.
func (w *world) proxyLog() []block {
	if w.proxy == nil {
		return nil
	}
	complaints := w.proxy.complaints()
	if len(complaints) == 0 {
		return nil
	}
	blocks := []block{text("nftproxy's log says:")}
	for _, c := range complaints {
		blocks = append(blocks, text(c))
	}
	return blocks
}
