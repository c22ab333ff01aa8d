package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"nftproxy/test/lib/child"
	"nftproxy/test/lib/testnet"
)

const coreDNS, coreDNSVersion = "github.com/coredns/coredns", "v1.15.0"

// dnsService is the Service whose cluster IPs a cache takes. Its endpoints are a pod on the node and one on the other
// node.
const dnsService = `apiVersion: v1
kind: Service
metadata: {namespace: default, name: dns}
spec:
  type: ClusterIP
  clusterIP: 10.96.0.50
  clusterIPs: [10.96.0.50, "fd00:96::50"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports:
  - {name: tcp, protocol: TCP, port: 53, targetPort: 5353}
  - {name: udp, protocol: UDP, port: 53, targetPort: 5353}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: dns-ipv4, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports:
- {name: tcp, protocol: TCP, port: 5353}
- {name: udp, protocol: UDP, port: 5353}
endpoints:
- {addresses: ["10.244.0.10"], nodeName: node-1, conditions: {ready: true, serving: true, terminating: false}}
- {addresses: ["10.244.1.10"], nodeName: node-2, conditions: {ready: true, serving: true, terminating: false}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: dns-ipv6, labels: {kubernetes.io/service-name: dns}}
addressType: IPv6
ports:
- {name: tcp, protocol: TCP, port: 5353}
- {name: udp, protocol: UDP, port: 5353}
endpoints:
- {addresses: ["fd00:244::10"], nodeName: node-1, conditions: {ready: true, serving: true, terminating: false}}
- {addresses: ["fd00:244:0:1::10"], nodeName: node-2, conditions: {ready: true, serving: true, terminating: false}}
`

// cache says how the program answers at the cluster IPs of the Service dns, if it does.
type cache string

const (
	noCache cache = ""
	// untracked packets meet no rule for translated connections: the cache answers in place of the endpoints.
	untracked cache = "untracked"
	// tracked packets are translated before they reach the cache: the endpoints answer.
	tracked cache = "tracked"
)

// Addresses that the servers answer with, and what a question then comes to.
const (
	cacheSays, endpointSays = "192.0.2.53", "192.0.2.54"
	byCache, byEndpoint     = "answered by the cache", "answered by an endpoint"
)

// want is what must come of a question beside nftproxy that came to alone without it.
func (c cache) want(f flow, alone string) string {
	if f.addr.Addr() == netip.MustParseAddr(cacheOnly) || c == untracked && isOpen(alone) {
		return alone
	}
	return byEndpoint
}

// cacheOnly is the address that NodeLocal DNSCache has besides those of the Service.
const cacheOnly = "169.254.20.10"

// caches are DNS servers on the node at the address of a Service.
func caches() []neighbour {
	// NodeLocal DNSCache makes a dummy link. A bridge without ports serves as well, and each kernel that runs testnet has
	// it.
	const link = `ip link add nodelocaldns type bridge
ip link set nodelocaldns up
ip addr add 169.254.20.10/32 dev nodelocaldns
ip addr add 10.96.0.50/32 dev nodelocaldns
ip addr add fd00:96::50/128 dev nodelocaldns nodad
`
	const rules = `rules() {
	for a in 169.254.20.10 10.96.0.50 fd00:96::50; do
		t=iptables
		case $a in *:*) t=ip6tables ;; esac
		for p in tcp udp; do
			$t -t raw $1 PREROUTING -d $a -p $p --dport 53 -j CT --notrack
			$t -t raw $1 OUTPUT -d $a -p $p --dport 53 -j CT --notrack
			$t -t raw $1 OUTPUT -s $a -p $p --sport 53 -j CT --notrack
			$t $1 INPUT -d $a -p $p --dport 53 -j ACCEPT
			$t $1 OUTPUT -s $a -p $p --sport 53 -j ACCEPT
		done
	done
}
`
	const start = `{ /opt/` + coreDNSVersion + `/coredns -conf /tmp/Corefile >/tmp/coredns.log 2>&1 & }
until busybox nslookup cache.test 169.254.20.10 | grep -q 192.0.2.53; do sleep 0.1; done
`
	// CoreDNS answers the questions that it has, and then ends.
	const end = "kill \"$(pidof coredns)\"\nwhile pidof coredns; do sleep 0.1; done\n"
	one := func(name, what string, c cache, set, unset string) neighbour {
		return neighbour{
			name: name, program: "CoreDNS", what: what, cache: c,
			packages: []string{"iptables"}, programs: []string{"CoreDNS " + coreDNSVersion},
			prepare: "cat >/tmp/Corefile <<'EOF'\n. {\n bind 169.254.20.10 10.96.0.50 fd00:96::50\n cache 30\n hosts {\n  " +
				"192.0.2.53 cache.test\n }\n health 127.0.0.1:8053 {\n  lameduck 5s\n }\n}\nEOF\n",
			events: []event{
				{nameStart, link + start + set},
				{"is updated", unset + end + start + set},
			},
			stop: event{"stops", unset + end + "ip link delete nodelocaldns\n"},
		}
	}
	with := one("coredns", "on the node, at the cluster IPs of a DNS Service, with the rules of NodeLocal DNSCache: "+
		"they turn connection tracking off while CoreDNS answers",
		untracked, rules+"rules -A\n", rules+"rules -D\n")
	with.events = append(with.events, event{"sets its rules again", rules + "rules -D\nrules -A\n"})
	return []neighbour{
		with,
		one("coredns-tracked", "the same without these rules: Services take precedence over addresses of the node", tracked,
			"", ""),
	}
}

// lookups are the questions that a cache answers: at the cluster IPs of the Service dns, and at the address of the node
// alone that NodeLocal DNSCache has.
func (w *world) lookups() []flow {
	var all []flow
	for _, addr := range []string{"10.96.0.50", "fd00:96::50", cacheOnly} {
		for _, from := range []string{"pod", "node"} {
			for _, proto := range []string{testnet.TCP, testnet.UDP} {
				a := netip.MustParseAddr(addr)
				all = append(all, flow{from: from, to: "the cache at " + addr, protocol: dnsBy + proto,
					addr: netip.AddrPortFrom(a, 53)})
			}
		}
	}
	return all
}

// dnsBy begins the protocol of a flow or stream that is a question to a DNS server.
const dnsBy = "dns by "

// dnsStreams are steady questions to the cluster IPs of the Service dns. Those of the node come from its own address: a
// process that asks for no other gets the one that it asks, as soon as the node has that. IPv6 gives it before the node
// takes packets for it.
func (w *world) dnsStreams() []stream {
	var all []stream
	for _, f := range w.lookups() {
		if f.addr.Addr() != netip.MustParseAddr(cacheOnly) {
			s := stream{from: f.from, protocol: f.protocol, addr: f.addr, strict: true}
			if i := slices.IndexFunc(w.net.NodeAddrs, func(a netip.Addr) bool {
				return a.Is4() == s.addr.Addr().Is4()
			}); s.from == "node" {
				s.source = w.net.NodeAddrs[i]
			}
			all = append(all, s)
		}
	}
	return all
}

// startDNS starts the endpoints of the Service dns.
func (w *world) startDNS(ctx context.Context) error {
	if err := os.WriteFile(filepath.Join(w.dir, "manifests", "dns.yaml"), []byte(dnsService), 0o644); err != nil {
		return err
	}
	for _, name := range []string{"near", "far"} {
		pod, file := w.net.Pod(name), filepath.Join(w.dir, name+".corefile")
		text := fmt.Sprintf(".:5353 {\n bind %v %v\n hosts {\n  %s cache.test\n }\n}\n", pod.Addrs[0], pod.Addrs[1],
			endpointSays)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
		p, err := child.Start(pod.NS, exec.Command(filepath.Join(w.tree, "opt", coreDNSVersion, "coredns"), "-conf", file))
		if err != nil {
			return err
		}
		w.servers = append(w.servers, p)
		listens := func(l child.Line) bool { return strings.Contains(l.Text, "CoreDNS-") }
		if _, _, err := p.Await(ctx, 0, listens); err != nil {
			return fmt.Errorf("endpoint %s of the Service dns: %w\n%s", name, err, p.Tail(10))
		}
	}
	return nil
}

// lookUp asks a DNS server, from an address if that is valid, for the name that all of them know, and says which of
// them has answered. A question by TCP whose connection breaks is asked again, as resolvers do: where tracking of an
// open connection begins or ends, its packets reach another server.
func lookUp(ctx context.Context, ns *testnet.Namespace, proto string, from netip.Addr, addr netip.AddrPort,
	timeout time.Duration) string {
	for left := attempts; ; left-- {
		got, err := query(ctx, ns, proto, from, addr, timeout)
		var failure net.Error
		switch {
		case err == nil && got == netip.MustParseAddr(cacheSays):
			return byCache
		case err == nil && got == netip.MustParseAddr(endpointSays):
			return byEndpoint
		case err == nil:
			return "another answer"
		case proto == testnet.UDP, left == 1, errors.As(err, &failure) && failure.Timeout():
			return "not answered"
		}
	}
}

// query asks a DNS server once for the address of a name.
func query(ctx context.Context, ns *testnet.Namespace, proto string, from netip.Addr, addr netip.AddrPort,
	timeout time.Duration) (netip.Addr, error) {
	const id = 53
	question := dnsmessage.Question{Name: dnsmessage.MustNewName("cache.test."), Type: dnsmessage.TypeA,
		Class: dnsmessage.ClassINET}
	text, err := (&dnsmessage.Message{Header: dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{question}}).Pack()
	if err != nil {
		return netip.Addr{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	source := ""
	if from.IsValid() {
		source = netip.AddrPortFrom(from, 0).String()
	}
	conn, err := ns.DialFrom(ctx, proto, source, addr.String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	if deadline, has := ctx.Deadline(); has {
		if err := conn.SetDeadline(deadline); err != nil {
			return netip.Addr{}, err
		}
	}
	if text, err = exchange(conn, proto, text); err != nil {
		return netip.Addr{}, err
	}
	var answer dnsmessage.Message
	if err := answer.Unpack(text); err != nil {
		return netip.Addr{}, err
	}
	if len(answer.Answers) == 1 && answer.ID == id {
		if a, is := answer.Answers[0].Body.(*dnsmessage.AResource); is {
			return netip.AddrFrom4(a.A), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("the answer is %v", answer)
}

// exchange sends a message and reads the answer. By TCP each has its length before it.
func exchange(conn net.Conn, proto string, text []byte) ([]byte, error) {
	buf := make([]byte, 512)
	if proto == testnet.UDP {
		if _, err := conn.Write(text); err != nil {
			return nil, err
		}
		n, err := conn.Read(buf)
		return buf[:n], err
	}
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(text))), text...)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(conn, buf[:2]); err != nil {
		return nil, err
	}
	n := min(int(binary.BigEndian.Uint16(buf)), len(buf))
	_, err := io.ReadFull(conn, buf[:n])
	return buf[:n], err
}
