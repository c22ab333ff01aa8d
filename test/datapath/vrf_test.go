package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/testnet"
)

// The VRF.
const (
	device   = "blue"
	vrfTable = 10
)

// vrf is a node some of whose interfaces are in a VRF.
type vrf struct {
	network
	client, near, far *testnet.Pod
}

// newVRF puts these interfaces of the node into a VRF. Its table and the main one both have every route: where one of
// them names an interface of the other, packets go from the VRF to the rest of the node and back ("route leaking" in
// the kernel's vrf.rst).
func newVRF(t *testing.T, inside func(w *vrf) []string) *vrf {
	w := &vrf{network: newNetwork(t)}
	var err error
	w.client, err = w.AddPod("client")
	w.must(err)
	w.near, err = w.AddPod("near")
	w.must(err)
	w.far, err = w.AddRemotePod("far")
	w.must(err)
	for _, pod := range []*testnet.Pod{w.near, w.far} {
		for _, a := range pod.Addrs {
			for _, proto := range []string{testnet.TCP, testnet.UDP} {
				_, err := pod.NS.Serve(proto, netip.AddrPortFrom(a, port), pod.Name)
				w.must(err)
			}
		}
	}
	w.routeBalancers()
	for i, pods := range w.PodCIDRs {
		w.must(w.Outside.AddRoute(pods, w.NodeAddrs[i]))
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = device
	blue := &netlink.Vrf{LinkAttrs: attrs, Table: vrfTable}
	if err := w.Node.Handle().LinkAdd(blue); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel has no VRF: %v", err)
	} else {
		w.must(err)
	}
	w.must(w.Node.Handle().LinkSetUp(blue))
	// What is masqueraded needs an address in the endpoint's routing domain.
	w.must(w.Node.AddAddrs("lo", netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00:2::1")))
	w.must(w.Node.AddAddrs(device, netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("fd00:2::2")))
	for _, name := range inside(w) {
		// An interface loses its IPv6 addresses on the way into a VRF; the global ones not if this is set.
		w.must(w.Node.Sysctl("net.ipv6.conf."+name+".keep_addr_on_down", "1"))
		w.must(w.Node.Handle().LinkSetMaster(w.link(name), blue))
		if name != w.Uplink {
			w.must(w.Node.AddAddr(name, netip.MustParsePrefix("fe80::1/64"))) // the pod's gateway
		}
	}
	for _, table := range []int{unix.RT_TABLE_MAIN, vrfTable} {
		w.routes(table)
	}
	return w
}

func (w *vrf) link(name string) netlink.Link {
	w.Helper()
	link, err := w.Node.Handle().LinkByName(name)
	w.must(err)
	return link
}

// routes adds the routes to pods, to the network of nodes and to everything else.
func (w *vrf) routes(table int) {
	w.Helper()
	add := func(to netip.Prefix, link string, via, src netip.Addr) {
		w.Helper()
		r := &netlink.Route{
			Table: table, LinkIndex: w.link(link).Attrs().Index, Src: src.AsSlice(),
			Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())},
		}
		if r.Scope = netlink.SCOPE_LINK; via.IsValid() {
			r.Scope, r.Gw, r.Flags = netlink.SCOPE_UNIVERSE, via.AsSlice(), int(netlink.FLAG_ONLINK)
		}
		if err := w.Node.Handle().RouteReplace(r); err != nil {
			w.Fatalf("add route %v: %v", r, err)
		}
	}
	for i, address := range w.NodeAddrs {
		for _, pod := range []*testnet.Pod{w.client, w.near} {
			add(netip.PrefixFrom(pod.Addrs[i], pod.Addrs[i].BitLen()), pod.HostInterface, netip.Addr{}, netip.Addr{})
		}
		network, err := address.Prefix([]int{24, 64}[i])
		w.must(err)
		add(network, w.Uplink, netip.Addr{}, netip.Addr{})
		add(netip.PrefixFrom(w.far.Addrs[i], address.BitLen()), w.Uplink, w.RemoteAddrs[i], netip.Addr{})
		all, err := address.Prefix(0)
		w.must(err)
		add(all, w.Uplink, w.OutsideAddrs[i], netip.Addr{})
	}
}

// serve applies the rules of Services whose addresses and node ports end in 1 (endpoint on the node), 2 (on another
// node), 3 (policy Local) and 4 (without endpoints).
func (w *vrf) serve() {
	w.Helper()
	var text strings.Builder
	for i, pod := range []*testnet.Pod{w.near, w.far, w.near, nil} {
		fmt.Fprintf(&text, "service a/%d created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.%[1]d\n  cluster-ip "+
			"fd00:96::%[1]d\n"+
			"  load-balancer-ip 198.51.100.%[1]d\n  load-balancer-ip fd00:99::%[1]d\n", i+1)
		if i == 2 {
			text.WriteString("  external-policy Local\n")
		}
		for _, proto := range []string{testnet.TCP, testnet.UDP} {
			fmt.Fprintf(&text, "  port %s %[1]s 80 node-port %d\n", proto, 30001+i)
			if pod == nil {
				continue
			}
			node := "n"
			if pod == w.far {
				node = "m"
			}
			for _, a := range pod.Addrs {
				fmt.Fprintf(&text, "    endpoint %v %s ready serving\n", netip.AddrPortFrom(a, port), node)
			}
		}
	}
	conn, err := kernel.Open(kernel.Config{NetNS: w.Node.Fd()})
	w.must(err)
	defer func() { w.must(conn.Close()) }()
	var state nft.State
	batch, _ := state.Plan(w.compile(text.String(), "primary"), time.Time{})
	w.must(conn.Apply(batch))
}

// asks is a question, and the endpoint that has to answer; refused if empty.
type asks struct {
	name   string
	from   *testnet.Namespace
	to     testnet.Addrs
	port   uint16
	by     string
	hidden bool
}

func (w *vrf) ask(all []asks) {
	w.Helper()
	for _, a := range all {
		for _, to := range a.to {
			at := netip.AddrPortFrom(to, a.port)
			for _, proto := range []string{testnet.TCP, testnet.UDP} {
				answer, err := a.from.Ask(w.Context(), proto, at, time.Minute)
				w.must(err)
				name := fmt.Sprintf("%s, %s to %v", a.name, proto, at)
				want := testnet.Answered
				if a.by == "" {
					want = testnet.Refused
				}
				switch {
				case answer.Outcome != want || answer.ID != a.by:
					w.Errorf("%s: %s by %q, want %s by %q", name, answer.Outcome, answer.ID, want, a.by)
				case a.by != "" && a.hidden == (answer.Peer == answer.Local):
					w.Errorf("%s: the endpoint sees %v of a client that is %v; want it hidden: %v", name, answer.Peer, answer.Local,
						a.hidden)
				}
			}
		}
	}
}

// processes asks Services from processes of the node that run in the VRF, as by "ip vrf exec".
func (w *vrf) processes() {
	w.Helper()
	bind := func(_, _ string, socket syscall.RawConn) (err error) {
		failed := socket.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), device) })
		return errors.Join(failed, err)
	}
	for n, pod := range []*testnet.Pod{w.near, w.far} {
		for _, to := range serviceAddrs(clusterIPs, n+1) {
			for _, proto := range []string{testnet.TCP, testnet.UDP} {
				var conn net.Conn
				err := w.Node.Do(func() (err error) {
					dialer := net.Dialer{Timeout: time.Minute, Control: bind}
					conn, err = dialer.DialContext(w.Context(), proto, netip.AddrPortFrom(to, 80).String())
					return err
				})
				if err != nil {
					w.Errorf("a process of the VRF, %s to %v: %v", proto, to, err)
					continue
				}
				w.must(conn.SetDeadline(time.Now().Add(time.Minute)))
				_, err = conn.Write([]byte("?"))
				w.must(err)
				b := make([]byte, 128)
				size, err := conn.Read(b)
				if id, _, _ := strings.Cut(string(b[:size]), " "); err != nil || id != pod.Name {
					w.Errorf("a process of the VRF, %s to %v: %q, %v, want an answer by %q", proto, to, b[:size], err, pod.Name)
				}
				w.must(conn.Close())
			}
		}
	}
}

// The networks of Services' addresses, of both families.
const clusterIPs, balancers = "10.96.0. fd00:96::", "198.51.100. fd00:99::"

// serviceAddrs are the addresses of a Service by its number.
func serviceAddrs(networks string, number int) testnet.Addrs {
	var all testnet.Addrs
	for _, prefix := range strings.Fields(networks) {
		all = append(all, netip.MustParseAddr(fmt.Sprint(prefix, number)))
	}
	return all
}

// TestVRF: Services are served on a node some of whose interfaces are in a VRF. Packets pass the hooks of such an
// interface twice, for itself and for the VRF's device.
func TestVRF(t *testing.T) {
	pods := func(w *vrf) []string { return []string{w.client.HostInterface, w.near.HostInterface} }
	uplink := func(w *vrf) []string { return []string{w.Uplink} }
	for name, inside := range map[string]func(w *vrf) []string{
		"uplink": uplink, "pods": pods, "all": func(w *vrf) []string { return append(pods(w), uplink(w)...) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newVRF(t, inside)
			w.ask([]asks{
				{"pod to pod", w.client.NS, w.near.Addrs, port, "near", false},
				{"pod to pod", w.client.NS, w.far.Addrs, port, "far", false},
				{"outside to pod", w.Outside, w.near.Addrs, port, "near", false},
			})
			if t.Failed() {
				t.Fatal("pods cannot be reached without rules")
			}
			w.serve()
			w.ask([]asks{
				{"cluster IP, near", w.client.NS, serviceAddrs(clusterIPs, 1), 80, "near", false},
				{"cluster IP, far", w.client.NS, serviceAddrs(clusterIPs, 2), 80, "far", false},
				{"cluster IP, itself", w.near.NS, serviceAddrs(clusterIPs, 1), 80, "near", true},
				{"cluster IP, no endpoints", w.client.NS, serviceAddrs(clusterIPs, 4), 80, "", false},
				{"cluster IP, unknown port", w.client.NS, serviceAddrs(clusterIPs, 1), 81, "", false},
				{"node port, near", w.Outside, w.NodeAddrs, 30001, "near", true},
				{"node port, far", w.Outside, w.NodeAddrs, 30002, "far", true},
				{"node port, policy Local", w.Outside, w.NodeAddrs, 30003, "near", false},
				{"node port, no endpoints", w.Outside, w.NodeAddrs, 30004, "", false},
				{"node port of a pod", w.client.NS, w.NodeAddrs, 30001, "near", true},
				{"load balancer, near", w.Outside, serviceAddrs(balancers, 1), 80, "near", true},
				{"load balancer, far", w.Outside, serviceAddrs(balancers, 2), 80, "far", true},
				{"load balancer, policy Local", w.Outside, serviceAddrs(balancers, 3), 80, "near", false},
				{"load balancer, no endpoints", w.Outside, serviceAddrs(balancers, 4), 80, "", false},
			})
			// A packet for one of the node's addresses has to arrive in the VRF of that address, so a process of the VRF reaches
			// no pod outside it, with or without a Service, and the other way round.
			if name == "all" {
				w.processes()
			}
		})
	}
}
