package kernel_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/netfilter"
)

// own makes the Conn the owner of a program's tables.
func own(c *kernel.Conn, p *nft.Program) error {
	var errs []error
	for _, f := range nft.Families() {
		errs = append(errs, c.Own(p.Table(f).ID()))
	}
	return errors.Join(errs...)
}

// A Conn can own, read and write one family's table while another process owns the other
// family's.
func TestForeignFamily(t *testing.T) {
	ns, other := open(t)
	must(t, other.Apply(nft.Batch{Ops: []nft.Op{nft.AddTable{Table: table(nft.IPv6)}}}))
	if has, err := netfilter.OwnedTables(ns.Fd()); err != nil || !has {
		must(t, err)
		t.Skip("this kernel has no owned tables that persist")
	}
	c := openIn(t, ns)
	p := everything()
	must(t, c.Own(table(nft.IPv4)))
	batch, _ := nft.State{}.PlanTable(p.IPv4, time.Time{})
	must(t, c.Apply(batch))
	contents, err := c.ReadTable(p.IPv4)
	must(t, err)
	want, got := nft.NewModel(), nft.NewModel()
	want.Put(p.Model().Table(table(nft.IPv4)))
	got.Put(contents)
	if got.String() != want.String() {
		t.Errorf("read\n%s\nwant\n%s", got, want)
	}
	if err := c.Own(table(nft.IPv6)); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "own table ip6 ") {
		t.Errorf("own the other's table: %v", err)
	}
	// Any process can read the table, which is empty.
	if contents, err = c.ReadTable(p.IPv6); err != nil || contents == nil || len(contents.Chains) > 0 {
		t.Errorf("read of the other's table: %+v, %v", contents, err)
	}
	if contents, err = c.ReadTable(&nft.Table{Family: nft.IPv6, Name: "nowhere"}); err != nil || contents != nil {
		t.Errorf("read of no table: %+v, %v", contents, err)
	}
}
