package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"nftproxy/test/lib/testnet"
)

// flow is a question from one place to an address.
type flow struct {
	from, to string
	protocol string // tcp, udp, or http for a health check
	addr     netip.AddrPort
	// like is the flow to a pod or the node, without a Service, that crosses the same hooks of the node between the same
	// interfaces. It is empty for such a flow itself.
	like string
	// want is what must come of it without a neighbour.
	want string
}

// name says what a reader calls the flow, without the family.
func (f flow) name() string { return f.from + " to " + f.to + ", " + f.protocol }

// key tells the flow from all others.
func (f flow) key() string {
	if f.addr.Addr().Is4() {
		return f.name() + ", IPv4"
	}
	return f.name() + ", IPv6"
}

// The outcomes that flows are declared with.
const (
	kept    = "answered, sees the client"
	hidden  = "answered, sees the node"
	refused = string(testnet.Refused)
	healthy = "200 OK"
	// brokenOff is a TCP connection that began.
	brokenOff = "broken off"
)

// direct are the flows to pods and to the node itself.
func (w *world) direct() []flow {
	var all []flow
	for i := range w.net.NodeAddrs {
		pods := map[string]netip.Addr{"near": w.net.Pod("near").Addrs[i], "far": w.net.Pod("far").Addrs[i]}
		for _, proto := range []string{testnet.TCP, testnet.UDP} {
			add := func(from, to string, addr netip.Addr, port uint16, want string) {
				all = append(all, flow{from: from, to: to, protocol: proto, addr: netip.AddrPortFrom(addr, port), want: want})
			}
			for _, from := range []string{"pod", "node", "outside", "other node's pod"} {
				add(from, "near", pods["near"], podPort, kept)
				if from == "other node's pod" {
					continue
				}
				add(from, "far", pods["far"], podPort, kept)
			}
			for _, from := range []string{"pod", "outside", "other node's pod"} {
				add(from, "the node's server", w.net.NodeAddrs[i], nodeSide, kept)
			}
		}
	}
	return all
}

// own are the flows to what the neighbour itself serves, if it serves anything.
func (w *world) own(n neighbour) []flow {
	if n.cache != noCache {
		return w.lookups()
	}
	if n.published == 0 {
		return nil
	}
	return []flow{{from: "outside", to: "the program's own port", protocol: testnet.TCP,
		addr: netip.AddrPortFrom(w.net.NodeAddrs[0], n.published)}}
}

// places a Service has: where it is, and the port.
type frontend struct {
	name string
	addr func(w *world, family, number int) netip.AddrPort
}

func serviceAddr(prefix4, prefix6 string, number, family int) netip.Addr {
	if family == 0 {
		return netip.MustParseAddr(prefix4 + strconv.Itoa(number))
	}
	return netip.MustParseAddr(prefix6 + strconv.Itoa(number))
}

func frontends() []frontend {
	at := func(p4, p6 string, add int) func(*world, int, int) netip.AddrPort {
		return func(_ *world, family, number int) netip.AddrPort {
			return netip.AddrPortFrom(serviceAddr(p4, p6, number+add, family), 80)
		}
	}
	return []frontend{
		{"cluster IP", at("10.96.0.", "fd00:96::", 0)},
		{"node port", func(w *world, family, number int) netip.AddrPort {
			return netip.AddrPortFrom(w.net.NodeAddrs[family], 30000+uint16(number))
		}},
		{"load balancer", at("203.0.113.", "2001:db8::", 0)},
		{"external IP", at("203.0.113.", "2001:db8::", 100)},
	}
}

// The Services of objects.yaml by the last part of their addresses and ports.
const (
	serviceNear  = 10
	serviceFar   = 20
	serviceLocal = 30
	serviceEmpty = 40
)

// services are the flows to Services.
func (w *world) services() []flow {
	var all []flow
	for family := range w.net.NodeAddrs {
		for _, proto := range []string{testnet.TCP, testnet.UDP} {
			add := func(from, to string, addr netip.AddrPort, like, want string) {
				f := flow{from: from, to: to, protocol: proto, addr: addr, want: want}
				likeFlow := flow{protocol: proto, addr: addr}
				likeFlow.from, likeFlow.to, _ = strings.Cut(like, " to ")
				f.like = likeFlow.key()
				all = append(all, f)
			}
			for _, front := range frontends() {
				inside := front.name == "cluster IP"
				for _, from := range []string{"pod", "node", "outside"} {
					if from == "outside" && inside {
						continue
					}
					source := hidden
					if inside || from == "node" {
						source = kept
					}
					add(from, front.name+", endpoint on the node", front.addr(w, family, serviceNear), from+" to near", source)
					add(from, front.name+", endpoint on another node", front.addr(w, family, serviceFar), from+" to far", source)
					switch {
					case from == "node" && !inside, inside:
						continue
					}
					add(from, front.name+", policy Local", front.addr(w, family, serviceLocal), from+" to near", kept)
				}
				for _, from := range []string{"pod", "node", "outside"} {
					if from == "outside" && inside {
						continue
					}
					like := from + " to near"
					if front.name == "node port" && from != "node" {
						like = from + " to the node's server"
					}
					add(from, front.name+", no endpoints", front.addr(w, family, serviceEmpty), like, refused)
				}
			}
			cluster := frontends()[0].addr(w, family, serviceNear)
			for _, from := range []string{"pod", "node"} {
				add(from, "cluster IP, unknown port", netip.AddrPortFrom(cluster.Addr(), 81), from+" to near", refused)
			}
			port := frontends()[1].addr(w, family, serviceNear)
			add("other node's pod", "node port, endpoint on the node", port, "other node's pod to near", hidden)
			add("endpoint", "cluster IP, itself (hairpin)", cluster, "pod to near", hidden)
			loopback := netip.AddrPortFrom([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}[family],
				port.Port())
			add("node", "node port on localhost, endpoint on the node", loopback, "node to near", kept)
			add("node", "node port on localhost, endpoint on another node", netip.AddrPortFrom(loopback.Addr(),
				30000+serviceFar), "node to far", kept)
		}
		health := netip.AddrPortFrom(w.net.NodeAddrs[family], healthPort)
		like := flow{from: "outside", to: "the node's server", protocol: testnet.TCP, addr: health}
		all = append(all, flow{from: "outside", to: "health check node port", protocol: "http", addr: health,
			like: like.key(), want: healthy})
	}
	return all
}

// short is how long a flow may take at first: on an idle machine that is enough. trialSetup.long is what it may take
// after that.
const short = time.Second

// ask asks all flows, many at once, and returns what came of each by its key. A flow that had no answer is asked again
// with more time, unless the direct flow like it is known and had none either: on a busy machine a second is little.
func (w *world) ask(ctx context.Context, flows []flow, open map[string]string) (map[string]string, error) {
	outcomes := make([]string, len(flows))
	var group errgroup.Group
	group.SetLimit(w.atOnce)
	for i, f := range flows {
		group.Go(func() (err error) {
			outcomes[i], err = w.askOne(ctx, f, short)
			if err == nil && outcomes[i] == string(testnet.TimedOut) && (open == nil || isOpen(open[f.like])) {
				outcomes[i], err = w.askOne(ctx, f, w.long)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	all := map[string]string{}
	for i, f := range flows {
		all[f.key()] = outcomes[i]
	}
	return all, nil
}

func (w *world) askOne(ctx context.Context, f flow, timeout time.Duration) (string, error) {
	ns := w.places[f.from]
	if f.protocol == "http" {
		return getHealth(ctx, ns, f.addr, timeout)
	}
	if proto, is := strings.CutPrefix(f.protocol, dnsBy); is {
		return lookUp(ctx, ns, proto, netip.Addr{}, f.addr, w.long), nil
	}
	answer, err := ns.Ask(ctx, f.protocol, f.addr, timeout)
	if err != nil {
		if ctx.Err() != nil {
			return "", err
		}
		return brokenOff, nil
	}
	if answer.Outcome != testnet.Answered {
		return string(answer.Outcome), nil
	}
	if answer.Peer.Addr() == answer.Local.Addr() {
		return kept, nil
	}
	// A client on the node is the node, whichever of its addresses the endpoint sees: neighbours add some, which the
	// kernel may choose.
	if f.from == "node" {
		addrs, err := w.net.Node.Handle().AddrList(nil, netlink.FAMILY_ALL)
		if err != nil {
			return "", fmt.Errorf("list the node's addresses: %w", err)
		}
		if slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.Equal(answer.Peer.Addr().AsSlice()) }) {
			return kept, nil
		}
	}
	return hidden, nil
}

// getHealth asks a health check node port.
func getHealth(ctx context.Context, ns *testnet.Namespace, addr netip.AddrPort, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	transport := &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr.String()+"/healthz", nil)
	if err != nil {
		return "", err
	}
	response, err := transport.RoundTrip(request)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return string(testnet.TimedOut), nil
	case err != nil:
		return refused, nil
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.Status, err
}

// unexpected names the flows that are not as declared.
func unexpected(flows []flow, got map[string]string) error {
	var errs []error
	for _, f := range flows {
		if got[f.key()] != f.want {
			errs = append(errs, fmt.Errorf("%s (%v): %s, want %s", f.key(), f.addr, got[f.key()], f.want))
		}
	}
	return errors.Join(errs...)
}

// table is what became of the flows to Services after one event.
type table struct {
	// Flows is their number, AsBefore how many went as without the neighbour.
	Flows, AsBefore int
	// Closed are those that the neighbour forbids by itself too, Opened those that go although it forbids the direct way,
	// and Faults those that fail although the direct way is open. Silent are connections of the node whose refusal it
	// drops.
	Closed, Opened, Faults, Silent []string `json:",omitempty"`
}

// judge compares the outcomes of Services beside the neighbour with those of direct flows through the neighbour alone.
// silences says that the neighbour may drop refusals.
func judge(flows []flow, got, open map[string]string, silences bool) table {
	var t table
	closed, opened, faults, silent := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, f := range flows {
		t.Flows++
		result, free := got[f.key()], isOpen(open[f.like])
		switch {
		case f.like == "" && result != f.want:
			faults[fmt.Sprintf("%s: %s, want %s", f.key(), result, f.want)] = true
		case f.like == "":
			t.AsBefore++
		case result == f.want:
			t.AsBefore++
			if !free && f.want != refused {
				opened[f.name()] = true
			}
		case !free && (result == refused || result == string(testnet.TimedOut) || result == string(testnet.Unreachable)):
			closed[f.name()] = true
		case silences && f.from == "node" && f.protocol == testnet.TCP && f.want == refused &&
			result == string(testnet.TimedOut):
			silent[f.name()] = true
		default:
			faults[fmt.Sprintf("%s: %s, want %s", f.key(), result, f.want)] = true
		}
	}
	t.Closed, t.Opened, t.Faults, t.Silent = sorted(closed), sorted(opened), sorted(faults), sorted(silent)
	return t
}

// isOpen says that a direct flow had an answer.
func isOpen(outcome string) bool { return strings.HasPrefix(outcome, "answered") }

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
