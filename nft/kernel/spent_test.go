package kernel_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
)

// TestSpent: encoding and committing both take time. Spent is about the last Apply.
func TestSpent(t *testing.T) {
	_, c := open(t)
	if encode, commit := c.Spent(); encode != 0 || commit != 0 {
		t.Errorf("before the first Apply: %v, %v", encode, commit)
	}
	must(t, c.Apply(load(services(200, 10))))
	loadEncode, loadCommit := c.Spent()
	if loadEncode <= 0 || loadCommit <= 0 {
		t.Errorf("after a load: %v, %v", loadEncode, loadCommit)
	}
	must(t, c.Apply(nft.Batch{}))
	if encode, commit := c.Spent(); encode != loadEncode || commit != loadCommit {
		t.Errorf("after an empty batch: %v, %v, want %v, %v", encode, commit, loadEncode, loadCommit)
	}
	missing := nft.Batch{Ops: []nft.Op{nft.DeleteChain{Table: nft.TableID{Family: nft.IPv4, Name: tableName},
		Chain: "none"}}}
	if err := c.Apply(missing); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("error %v", err)
	}
	if encode, commit := c.Spent(); encode == loadEncode || commit == loadCommit || commit == 0 {
		t.Errorf("after a refused batch: %v, %v, and before %v, %v", encode, commit, loadEncode, loadCommit)
	}
}

// TestEncode: sending the datagram makes the same tables as Apply.
func TestEncode(t *testing.T) {
	ns, c := open(t)
	p := services(20, 3)
	datagram, err := kernel.Encode(load(p))
	must(t, err)
	socket, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd()})
	must(t, err)
	defer socket.Close()
	raw, err := socket.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		err = unix.Sendto(int(fd), datagram, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}))
	must(t, err)
	got, err := c.Read(p)
	must(t, err)
	if diff := cmp.Diff(p.Model().String(), got.String()); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
	for _, f := range nft.Families() {
		if owned, err := c.Owned(nft.TableID{Family: f, Name: tableName}); err != nil || owned {
			t.Errorf("owned %t, error %v", owned, err)
		}
	}
}
