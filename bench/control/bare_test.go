package control

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/testnet"
)

// program has Services with the given numbers of endpoints.
func program(t *testing.T, endpoints ...int) *nft.Program {
	t.Helper()
	b := snapshots.NewBuilder(gen.PlainNode())
	for i, n := range endpoints {
		b.Set(gen.UniformService(i, n))
	}
	return ruleset.Compile(ruleset.Config{Table: "nftproxy"}, b.Snapshot())
}

// TestBare: the kernel has the program with the declared sizes, and a refusal is an
// error.
func TestBare(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "bare")
	want := program(t, 3, 300, 2)
	all, err := encode(load(want))
	if err != nil {
		t.Fatal(err)
	}
	socket, err := dialBare(ns.Fd(), len(all[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.close()
	if took, err := socket.send(all); err != nil || took <= 0 {
		t.Fatalf("took %v, error %v", took, err)
	}
	conn, err := kernel.Open(kernel.Config{NetNS: ns.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := conn.Read(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Model().String(), got.String()); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
	for name, s := range got.Table(want.IPv4.ID()).Sets {
		if !s.Set.Interval && !s.Set.Dynamic && s.Set.Size == 0 {
			t.Errorf("set %s has no size", name)
		}
	}

	missing, err := encode(nft.Batch{Ops: []nft.Op{nft.DeleteChain{Table: want.IPv4.ID(), Chain: "none"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := socket.send(missing); !errors.Is(err, unix.ENOENT) {
		t.Errorf("error %v", err)
	}
	if _, err := socket.send(all); !errors.Is(err, unix.EEXIST) {
		t.Errorf("the same again: error %v", err)
	}
}
