package ruleset_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// wayIn is a way into the Service of slottedBy: older Services can have it instead, each with these lines.
type wayIn struct {
	name   string
	owners []string
}

// waysIn are the ways into the Service of slottedBy, as far as tables tell them apart: by each address, by node port in
// each family, and by ranges of ports.
func waysIn() []wayIn {
	const ports = " port http tcp 80\n port 443 tcp 81\n port https tcp 443\n"
	const nodePorts = " port a tcp 1 node-port 30080\n port b tcp 2 node-port 30081\n port c tcp 3 node-port 30443\n"
	at := func(kind, a string) wayIn {
		cluster := "10.96.1.1"
		if strings.Contains(a, ":") {
			cluster = "fd00:96::1:1"
		}
		lines := fmt.Sprintf(" cluster-ip %s\n %s %s\n", cluster, kind, a)
		if kind == "cluster-ip" {
			lines = fmt.Sprintf(" cluster-ip %s\n", a)
		}
		return wayIn{kind + " " + a, []string{lines + ports}}
	}
	ranges := wayIn{name: "ranges"}
	for _, a := range []string{"10.96.0.1", "fd00:96::1", "198.51.100.1", "2001:db8:1::1"} {
		lines := " cluster-ip " + a + "\n"
		switch a {
		case "198.51.100.1":
			lines = " cluster-ip 10.96.2.1\n external-ip " + a + "\n"
		case "2001:db8:1::1":
			lines = " cluster-ip fd00:96::2:1\n external-ip " + a + "\n"
		}
		ranges.owners = append(ranges.owners, lines+" option port-ranges 20000-20010/TCP\n port x tcp 99\n"+
			" port ranges tcp ranges=20000-20010\n")
	}
	return []wayIn{
		at("cluster-ip", "10.96.0.1"), at("cluster-ip", "fd00:96::1"),
		at("external-ip", "198.51.100.1"), at("external-ip", "2001:db8:1::1"),
		at("load-balancer-ip", "203.0.113.1"), at("load-balancer-ip", "2001:db8:2::1"),
		{"node port IPv4", []string{" cluster-ip 10.96.3.1\n" + nodePorts}},
		{"node port IPv6", []string{" cluster-ip fd00:96::3:1\n" + nodePorts}},
		ranges,
	}
}

// slottedBy is a Service by least connections that is served by some of the ways in, with these lines and the third
// endpoint on that node, and the older Services that have the other ways.
func slottedBy(t *testing.T, lines, third string, served func(way int) bool) service.Snapshot {
	t.Helper()
	// The endpoints of a port are also those of another one, as where a pod serves both.
	list, whole := "", ""
	for i := range 3 {
		node := []string{"node-0", "node-0", third}[i]
		for _, a := range []string{fmt.Sprint("10.0.0.", i+1), fmt.Sprint("fd00::", i+1)} {
			addr := netip.MustParseAddr(a)
			list += fmt.Sprintf("  endpoint %v %s ready serving\n", netip.AddrPortFrom(addr, 8080), node)
			whole += fmt.Sprintf("  endpoint %v %s ready serving\n", netip.AddrPortFrom(addr, 0), node)
		}
	}
	text := `node node-0
 address 192.0.2.1
 address 2001:db8::1
 host-address 192.0.2.1
 host-address 2001:db8::1
service a/web created 2026-06-01T00:00:00Z
 cluster-ip 10.96.0.1
 cluster-ip fd00:96::1
 external-ip 198.51.100.1
 external-ip 2001:db8:1::1
 load-balancer-ip 203.0.113.1
 load-balancer-ip 2001:db8:2::1
 option balance least-connections
` + lines + ` port http tcp 80 node-port 30080
` + list + ` port 443 tcp 81 node-port 30081
` + list + ` port https tcp 443 node-port 30443
` + list
	if !strings.Contains(lines, "affinity") {
		text += " port ranges tcp ranges=20000-20010\n" + whole
	}
	for i, way := range waysIn() {
		if served(i) {
			continue
		}
		for j, owner := range way.owners {
			text += fmt.Sprintf("service a/owner-%d-%d created 2026-01-01T00:00:00Z\n%s", i, j, owner)
		}
	}
	s, err := gen.ReadSnapshot(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return s
}

// TestReadSlots: whichever of its ways in a Service has, and by whichever policies, the slots of all its rows are read
// back from the tables, so that a restart writes nothing. Some subsets of the ways are left out where all endpoints are
// on the node, and with -short.
func TestReadSlots(t *testing.T) {
	cfg, ways := ruleset.Config{Table: ruleset.DefaultTable}, waysIn()
	kinds := []string{"", " internal-policy Local\n", " external-policy Local\n",
		" internal-policy Local\n external-policy Local\n", " affinity 3600s\n",
		" affinity 3600s\n internal-policy Local\n external-policy Local\n",
		" external-policy Local\n option external-failover cluster\n"}
	for i, lines := range slices.Concat(kinds, kinds) {
		third := []string{"node-1", "node-0"}[i/len(kinds)]
		t.Run(third+lines, func(t *testing.T) {
			if !strings.Contains(lines, "affinity") {
				lines += " option port-ranges 20000-20010/TCP\n"
			}
			every := 1 + 4*(i/len(kinds))
			if testing.Short() {
				every = 17
			}
			looked, unlike, rng := 0, 0, rand.New(rand.NewPCG(1, 2))
			for subset := 0; subset < 1<<len(ways); subset += every {
				plain := slottedBy(t, lines, third, func(way int) bool { return subset>>way&1 == 1 })
				slotted := gen.Slotted(rng, plain)
				p := ruleset.Compile(cfg, slotted)
				m := p.Model()
				if subset%8 == 7 {
					looked++
					unlike += min(1, writes(m, ruleset.Compile(cfg, plain)))
				}
				n := writes(m, ruleset.Compile(cfg, ruleset.WithSlots(plain, m, cfg.Table)))
				if n == 0 {
					continue
				}
				var by []string
				for i, way := range ways {
					if subset>>i&1 == 1 {
						by = append(by, way.name)
					}
				}
				t.Fatalf("served by %q only: a restart writes %d objects", by, n)
			}
			if unlike < looked {
				t.Errorf("without the slots a restart would write nothing for %d of %d Services", looked-unlike, looked)
			}
		})
	}
}

// writes returns how many operations lead from the tables to the program.
func writes(m *nft.Model, p *nft.Program) int {
	batch, _ := nft.Adopt(m, p).Plan(p, time.Time{})
	return len(batch.Ops)
}
