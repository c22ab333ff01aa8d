package testnet

import (
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
)

// quietInterfaces is how many stay while others come and go: so many that a
// dump of their addresses takes the kernel several messages.
const quietInterfaces = 200

// ChurnForTest gives a namespace interfaces with addresses of both families, and
// makes and removes others, one after the other, until the test ends.
func ChurnForTest(t TB, ns *Namespace) {
	t.Helper()
	for i := range quietInterfaces {
		if err := ns.addLinkWithAddresses(fmt.Sprintf("quiet%d", i), i); err != nil {
			t.Fatalf("add interface %d: %v", i, err)
		}
	}
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			name := fmt.Sprintf("restless%d", i)
			err := ns.addLinkWithAddresses(name, 1000+i%1000)
			if err == nil {
				err = ns.handle.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}})
			}
			if err != nil {
				t.Errorf("interface %s: %v", name, err)
				return
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		running.Wait()
	})
}

func (ns *Namespace) addLinkWithAddresses(name string, n int) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "p-" + name}
	if err := ns.handle.LinkAdd(link); err != nil {
		return err
	}
	for _, text := range []string{"10.%d.%d.1/24", "fd00:%x:%x::1/64"} {
		address, err := netlink.ParseAddr(fmt.Sprintf(text, n/256, n%256))
		if err != nil {
			return err
		}
		if err := ns.handle.AddrAdd(link, address); err != nil {
			return err
		}
	}
	return ns.handle.LinkSetUp(link)
}
