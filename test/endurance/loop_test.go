package endurance

import (
	"context"
	"testing"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

func config() ruleset.Config {
	return ruleset.Config{Table: "nftproxy"}
}

// loop is the loop of a proxy with a real kernel.
type loop struct {
	conn    *kernel.Conn
	mailbox *service.Mailbox
	// syncs has each sync.
	syncs chan proxy.Sync
	stop  context.CancelFunc
	ended chan error
}

// startLoop starts a loop in the namespace. Someone has to read its syncs.
func startLoop(t testing.TB, ns *testnet.Namespace) *loop {
	t.Helper()
	conn, err := kernel.Open(kernel.Config{NetNS: ns.Fd()})
	must(t, err)
	l := &loop{conn: conn, mailbox: service.NewMailbox(), syncs: make(chan proxy.Sync), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	l.stop = cancel
	run := proxy.New(proxy.DefaultConfig(), conn, ruleset.NewCompiler(config()).Compile, func(s proxy.Sync) {
		select {
		case l.syncs <- s:
		case <-ctx.Done():
		}
	})
	go func() { l.ended <- run.Run(ctx, l.mailbox) }()
	return l
}

// close ends the loop and its sockets. The tables stay.
func (l *loop) close(t testing.TB) {
	t.Helper()
	l.stop()
	must(t, <-l.ended)
	must(t, l.conn.Close())
}

func (l *loop) publish(s service.Snapshot) {
	l.mailbox.Put(service.Update{Snapshot: s, Since: time.Now()})
}

// next is the next sync. It must not have failed.
func (l *loop) next(t testing.TB) proxy.Sync {
	t.Helper()
	s := <-l.syncs
	must(t, s.Err)
	return s
}

// makeUnowned makes empty tables without an owner: such tables are never owned.
func makeUnowned(t testing.TB, ns *testnet.Namespace) {
	t.Helper()
	cmd := netfilter.NFTForTest(t)
	for _, family := range []string{"ip", "ip6"} {
		must(t, cmd.Load(ns, "add table "+family+" "+config().Table))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
