package otherproxy_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/node/otherproxy"
	"nftproxy/test/lib/netfilter"
)

// serviceDevice makes a device with the name and the type of that of kube-proxy's IPVS mode and with these addresses,
// and gives the node an address of its own of each family.
func (w world) serviceDevice(addresses ...string) {
	w.Helper()
	err := w.ns.Handle().LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "kube-ipvs0"}})
	if errors.Is(err, unix.EOPNOTSUPP) {
		w.Skip("this kernel has no dummy interfaces; make test-kernels has")
	}
	if err == nil {
		err = w.ns.Handle().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "peer"}, PeerName: "peer2"})
	}
	if err != nil {
		w.Fatal(err)
	}
	w.address([]string{"kube-ipvs0", "peer", "peer2"}, addresses)
}

// address sets interfaces up, and gives the first one the addresses, and the second one those of the node.
func (w world) address(links []string, addresses []string) {
	w.Helper()
	for _, name := range links {
		link, err := w.ns.Handle().LinkByName(name)
		if err == nil {
			err = w.ns.Handle().LinkSetUp(link)
		}
		if err != nil {
			w.Fatal(err)
		}
	}
	add := func(link string, addresses ...string) {
		for _, a := range addresses {
			if err := w.ns.AddAddr(link, netip.MustParsePrefix(a)); err != nil {
				w.Fatal(err)
			}
		}
	}
	add(links[0], addresses...)
	add(links[1], "192.0.2.10/24", "2001:db8::10/64")
}

// bound lists the addresses of the device that are not for links; nil without a device.
func (w world) bound() (list []string) {
	w.Helper()
	device, err := w.ns.Handle().LinkByName("kube-ipvs0")
	if err != nil {
		return nil
	}
	addrs, err := w.ns.Handle().AddrList(device, netlink.FAMILY_ALL)
	if err != nil {
		w.Fatal(err)
	}
	for _, a := range addrs {
		if !a.IP.IsLinkLocalUnicast() {
			list = append(list, a.IP.String())
		}
	}
	slices.Sort(list)
	return list
}

// removeIPVS removes all of kube-proxy's rules, and returns the outcomes by the text of the rules.
func (w world) removeIPVS(of otherproxy.Removal) map[string]error {
	w.Helper()
	outcomes := map[string]error{}
	if err := w.ns.Do(func() error {
		return otherproxy.RemoveAll(w.Context(), of, func(r otherproxy.Rules, err error) { outcomes[r.String()] = err })
	}); err != nil {
		w.Fatal(err)
	}
	return outcomes
}

// connect opens a connection to a server on the address, and returns the source that the kernel chooses.
func (w world) connect(to string) (client, accepted net.Conn, source string) {
	w.Helper()
	if err := w.ns.Do(func() error {
		server, err := net.Listen("tcp", net.JoinHostPort(to, "0"))
		if err != nil {
			return err
		}
		defer server.Close()
		if client, err = net.Dial("tcp", server.Addr().String()); err != nil {
			return err
		}
		if accepted, err = server.Accept(); err == nil {
			w.Cleanup(func() { accepted.Close() })
		}
		return err
	}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { client.Close() })
	return client, accepted, client.LocalAddr().(*net.TCPAddr).IP.String()
}

// TestServiceDevice: the device goes with its addresses, but for those that a socket of the node has. What the node
// connects to them from then on has an address of the node.
func TestServiceDevice(t *testing.T) {
	w := newWorld(t)
	w.serviceDevice("10.96.0.1/32", "10.96.0.2/32", "10.96.0.3/32", "fd00:96::1/128", "fd00:96::2/128", "fd00:96::3/128")
	if kinds := w.look(); len(kinds) != 1 || kinds[0] != otherproxy.IPVS {
		t.Errorf("kinds %v", kinds)
	}
	if diff := cmp.Diff([]string{"kube-ipvs0 (ipvs, 6 addresses)"}, names(w.find())); diff != "" {
		t.Fatalf("found (-want +got):\n%s", diff)
	}
	var open, servers []net.Conn
	for _, a := range []string{"10.96.0.1", "fd00:96::1"} {
		client, server, source := w.connect(a)
		if source != a {
			t.Errorf("to %s from %s before", a, source)
		}
		open, servers = append(open, client), append(servers, server)
	}
	want := map[string]bool{"kube-ipvs0 (ipvs, 4 addresses)": false, "kube-ipvs0 (ipvs, 2 addresses)": true}
	outcomes := w.removeIPVS(otherproxy.Removal{})
	for name, inUse := range want {
		if err, reported := outcomes[name]; !reported || errors.Is(err, otherproxy.ErrInUse) != inUse ||
			otherproxy.Final(err) == inUse {
			t.Errorf("%s: reported %v, %v", name, reported, err)
		}
	}
	if diff := cmp.Diff([]string{"10.96.0.1", "fd00:96::1"}, w.bound()); diff != "" {
		t.Errorf("bound (-want +got):\n%s", diff)
	}
	for to, want := range map[string]string{"10.96.0.1": "192.0.2.10", "fd00:96::1": "2001:db8::10"} {
		client, _, source := w.connect(to)
		if source != want {
			t.Errorf("to %s from %s, want %s", to, source, want)
		}
		client.Close()
	}
	for i, client := range open {
		if _, err := client.Write([]byte("?")); err != nil {
			t.Errorf("an open connection: %v", err)
		}
		if n, err := servers[i].Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("an open connection: %v", err)
		}
	}
	// The kernel keeps a closed connection for a minute, so these end by a reset.
	for _, client := range open {
		if err := errors.Join(client.(*net.TCPConn).SetLinger(0), client.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range w.removeIPVS(otherproxy.Removal{EndConnections: true}) {
		if o != nil {
			t.Errorf("at the end: %v", o)
		}
	}
	if left := w.bound(); left != nil || len(w.find()) > 0 {
		t.Errorf("left: %v, %v", left, names(w.find()))
	}
	routes, err := w.ns.Handle().RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_LOCAL},
		netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dst != nil && (strings.HasPrefix(r.Dst.String(), "10.96.") || strings.HasPrefix(r.Dst.String(), "fd00:96:")) {
			t.Errorf("a route is left: %v", r)
		}
	}
}

// TestOthersDevice: a device with the name of kube-proxy's and another type is somebody else's, and so are its
// addresses.
func TestOthersDevice(t *testing.T) {
	w := newWorld(t)
	if err := w.ns.Handle().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "kube-ipvs0"},
		PeerName: "peer"}); err != nil {
		t.Fatal(err)
	}
	w.address([]string{"kube-ipvs0", "peer"}, []string{"10.96.0.1/32", "fd00:96::1/128"})
	if kinds := w.look(); len(kinds) > 0 {
		t.Errorf("kinds %v", kinds)
	}
	if found := names(w.find()); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	if outcomes := w.removeIPVS(otherproxy.Removal{EndConnections: true}); len(outcomes) > 0 {
		t.Errorf("outcomes %v", outcomes)
	}
	if diff := cmp.Diff([]string{"10.96.0.1", "fd00:96::1"}, w.bound()); diff != "" {
		t.Errorf("bound (-want +got):\n%s", diff)
	}
}

// TestIPSets: kube-proxy's ipsets go, and others' stay, even where the name begins alike.
func TestIPSets(t *testing.T) {
	w := newWorld(t)
	netfilter.NeedIPTables(t)
	family6 := netlink.IpsetCreateOptions{Family: unix.AF_INET6}
	create := func(name, kind string, options netlink.IpsetCreateOptions) {
		t.Helper()
		err := w.ns.Do(func() error { return netlink.IpsetCreate(name, kind, options) })
		if err != nil {
			t.Skipf("this kernel has no ipsets of type %s: %v", kind, err)
		}
	}
	create("KUBE-IPVS-IPS", "hash:ip", netlink.IpsetCreateOptions{})
	create("KUBE-6-IPVS-IPS", "hash:ip", family6)
	create("KUBE-6-LOAD-BALANCER-SOURCE-CID", "hash:ip", family6) // its name is cut
	create("KUBE-ROUTER", "hash:ip", netlink.IpsetCreateOptions{})
	if diff := cmp.Diff([]string{"kube-ipvs0 (ipvs, 3 ipsets)"}, names(w.find())); diff != "" {
		t.Fatalf("found (-want +got):\n%s", diff)
	}
	if kinds := w.look(); len(kinds) != 1 || kinds[0] != otherproxy.IPVS {
		t.Errorf("kinds %v", kinds)
	}
	for what, err := range w.removeIPVS(otherproxy.Removal{}) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := w.ns.Do(func() error {
		sets, err := netlink.IpsetListAll()
		if len(sets) != 1 || sets[0].SetName != "KUBE-ROUTER" {
			t.Errorf("left: %v", sets)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
