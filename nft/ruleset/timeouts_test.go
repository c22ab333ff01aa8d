package ruleset_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// dnsServices are Services with port 53. Each kind has its own number of endpoints, by which the test knows its chains.
const dnsServices = `node n
  address 192.168.0.1
  address fd00:100::1
service a/dns created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  cluster-ip fd00:96::10
  load-balancer-ip 198.51.100.1
  port u udp 53 node-port 30053
    endpoint 10.0.0.1:5353 n ready serving
    endpoint [fd00:1::1]:5353 n ready serving
  port t tcp 53 node-port 30053
    endpoint 10.0.0.1:5353 n ready serving
  port other udp 5353
    endpoint 10.0.0.1:53 n ready serving
    endpoint 10.0.0.2:53 n ready serving
service a/own created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.11
  option udp-timeouts 30s,10m
  port u udp 53 
    endpoint 10.0.0.1:53 n ready serving
    endpoint 10.0.0.2:53 n ready serving
    endpoint 10.0.0.3:53 n ready serving
service a/hashed created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.12
  option balance client
  port u udp 53 
    endpoint 10.0.0.1:53 n ready serving weight=1
    endpoint 10.0.0.2:53 n ready serving weight=99
service a/sticky created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.13
  affinity 3h0m0s
  port u udp 53 
    endpoint 10.0.0.1:53 n ready serving
`

// TestDNSTimeouts: UDP port 53 of a Service has the configuration's time-outs in both families and on its node port,
// whatever its endpoints, weights, balance and affinity are. Its other ports have none, and a Service that asks for its
// own has these.
func TestDNSTimeouts(t *testing.T) {
	s, err := gen.ReadSnapshot(strings.NewReader(dnsServices))
	if err != nil {
		t.Fatal(err)
	}
	cfg := ruleset.Config{Table: ruleset.DefaultTable}
	if strings.Contains(legible(ruleset.Compile(cfg, s)), "udp-5s-15s") {
		t.Error("there are time-outs for DNS without the option")
	}
	if cfg.DNSTimeouts, err = service.ParseUDPTimeouts("5s,15s"); err != nil {
		t.Fatal(err)
	}
	p := ruleset.Compile(cfg, s)
	of := map[string][]string{} // time-outs by what leads to a chain
	for _, f := range nft.Families() {
		for name, part := range p.Table(f).Parts.All() {
			for _, e := range part.Elements {
				chain := p.Table(f).Chains.At(e.Verdict.Chain)
				if chain == nil {
					continue
				}
				for _, r := range chain.Rules {
					for _, st := range r {
						if set, is := st.(nft.SetTimeout); is {
							of[name+" "+e.Set] = append(of[name+" "+e.Set], set.Name)
						}
					}
				}
			}
		}
	}
	for name, want := range map[string][]string{
		// IPv4: the cluster IP and the load balancer's address; IPv6: the cluster IP.
		"a/dns services":    {"udp-5s-15s", "udp-5s-15s", "udp-5s-15s"},
		"a/dns node-ports":  {"udp-5s-15s", "udp-5s-15s"},
		"a/own services":    {"udp-30s-10m"},
		"a/hashed services": {"udp-5s-15s"},
		"a/sticky services": {"udp-5s-15s"},
	} {
		if got := of[name]; !slices.Equal(got, want) {
			t.Errorf("%s: time-outs %q, want %q", name, got, want)
		}
		delete(of, name)
	}
	if len(of) > 0 {
		t.Errorf("others have time-outs: %v", of)
	}
	want := nft.Timeout{Name: "udp-5s-15s", Protocol: uint8(service.UDP), Unreplied: 5 * time.Second,
		Replied: 15 * time.Second}
	for _, f := range nft.Families() {
		if got := p.Table(f).Timeouts.At("udp-5s-15s"); got != want {
			t.Errorf("%v: object %+v, want %+v", f, got, want)
		}
	}

	// All that is not about DNS is as without the option.
	if s, err = gen.ReadSnapshot(strings.NewReader(strings.ReplaceAll(dnsServices, "udp 53 ", "udp 54 "))); err != nil {
		t.Fatal(err)
	}
	with := legible(ruleset.Compile(cfg, s))
	cfg.DNSTimeouts = service.Timeouts{}
	if with != legible(ruleset.Compile(cfg, s)) {
		t.Error("the option changes Services without port 53 of UDP")
	}
}

// TestDNSTimeoutsReadBack: the configuration's time-outs are not read back as a Service's own, so that the next
// configuration counts. A Service's own are, if another port of UDP tells them.
func TestDNSTimeoutsReadBack(t *testing.T) {
	const both = `service a/both created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.14
  option udp-timeouts 1m,30m
  port u udp 53
    endpoint 10.0.0.1:53 n ready serving
  port v udp 54
    endpoint 10.0.0.1:54 n ready serving
`
	s, err := gen.ReadSnapshot(strings.NewReader(dnsServices + both))
	if err != nil {
		t.Fatal(err)
	}
	before, after := ruleset.Config{Table: ruleset.DefaultTable}, ruleset.Config{Table: ruleset.DefaultTable}
	if before.DNSTimeouts, err = service.ParseUDPTimeouts("5s,15s"); err != nil {
		t.Fatal(err)
	}
	read := ruleset.ReadBack(ruleset.Compile(before, s).Model(), before.Table, s.Node)
	for name, want := range map[service.Name]service.Timeouts{
		"a/dns": {}, "a/hashed": {}, "a/sticky": {},
		"a/both": {Protocol: service.UDP, Unreplied: time.Minute, Replied: 30 * time.Minute},
	} {
		if got := read.Services.At(name).Options.UDPTimeouts; got != want {
			t.Errorf("%s asks for %+v, want %+v", name, got, want)
		}
	}
	for _, next := range []string{"off", "10s,30s"} {
		if after.DNSTimeouts = (service.Timeouts{}); next != "off" {
			if after.DNSTimeouts, err = service.ParseUDPTimeouts(next); err != nil {
				t.Fatal(err)
			}
		}
		program := legible(ruleset.Compile(after, read))
		if strings.Contains(program, "udp-5s-15s") {
			t.Errorf("with %s, time-outs of the configuration before stay", next)
		}
		if !strings.Contains(program, "udp-1m-30m") || next != "off" && !strings.Contains(program, "udp-10s-30s") {
			t.Errorf("with %s, time-outs are missing", next)
		}
	}
}
