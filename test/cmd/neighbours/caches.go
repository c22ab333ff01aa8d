package main

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"nftproxy/test/lib/testnet"
)

const coreDNS, coreDNSVersion = "github.com/coredns/coredns", "v1.15.0"

// dnsService is the Service whose cluster IPs a cache takes. Its endpoint does not speak DNS, so that an answer is the cache's.
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
  - {name: tcp, protocol: TCP, port: 53, targetPort: 8080}
  - {name: udp, protocol: UDP, port: 53, targetPort: 8080}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: dns-ipv4, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports:
- {name: tcp, protocol: TCP, port: 8080}
- {name: udp, protocol: UDP, port: 8080}
endpoints:
- {addresses: ["10.244.0.10"], nodeName: node-1, conditions: {ready: true, serving: true, terminating: false}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: dns-ipv6, labels: {kubernetes.io/service-name: dns}}
addressType: IPv6
ports:
- {name: tcp, protocol: TCP, port: 8080}
- {name: udp, protocol: UDP, port: 8080}
endpoints:
- {addresses: ["fd00:244::10"], nodeName: node-1, conditions: {ready: true, serving: true, terminating: false}}
`

// caches are DNS servers on the node at the address of a Service. Their packets are not tracked, so that no rule translates them.
func caches() []neighbour {
	// NodeLocal DNSCache makes a dummy link. A bridge without ports serves as well, and each kernel that runs testnet has it.
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
	const end = "kill \"$(pidof coredns)\"\nwhile pidof coredns; do sleep 0.1; done\n"
	return []neighbour{{
		name: "coredns", what: "CoreDNS on the node at the cluster IPs of a DNS Service, with the rules of NodeLocal DNSCache, which turn tracking off",
		packages: []string{"iptables"}, programs: []string{"CoreDNS " + coreDNSVersion}, cache: true,
		prepare: "cat >/tmp/Corefile <<'EOF'\n. {\n bind 169.254.20.10 10.96.0.50 fd00:96::50\n cache 30\n hosts {\n  192.0.2.53 cache.test\n }\n}\nEOF\n",
		events: []event{
			{nameStart, rules + link + "rules -A\n" + start},
			{"sets its rules again", rules + "rules -D\nrules -A\n"},
			{"restarts", end + start},
		},
		stop: event{"stops", rules + end + "rules -D\nip link delete nodelocaldns\n"},
	}}
}

// lookups are the questions that a cache answers: at the cluster IPs of the Service dns, and at the address of the node alone that
// NodeLocal DNSCache has.
func (w *world) lookups() []flow {
	var all []flow
	for _, addr := range []string{"10.96.0.50", "fd00:96::50", "169.254.20.10"} {
		for _, from := range []string{"pod", "node"} {
			for _, proto := range []string{testnet.TCP, testnet.UDP} {
				a := netip.MustParseAddr(addr)
				all = append(all, flow{from: from, to: "the cache at " + addr, protocol: "dns by " + proto, addr: netip.AddrPortFrom(a, 53)})
			}
		}
	}
	return all
}

// lookUp asks a cache for the name that it knows.
func lookUp(ctx context.Context, ns *testnet.Namespace, proto string, addr netip.AddrPort, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resolver := net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		return ns.Dial(ctx, proto, addr.String())
	}}
	got, err := resolver.LookupNetIP(ctx, "ip4", "cache.test.")
	if err != nil || !slices.Contains(got, netip.MustParseAddr("192.0.2.53")) {
		return "not answered by it"
	}
	return "answered by it"
}
