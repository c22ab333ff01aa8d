package service_test

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"nftproxy/model/service"
	"nftproxy/test/gen"
)

// TestOptionsComeBack: All yields what Set reads, and nothing for a Service that asks for nothing.
func TestOptionsComeBack(t *testing.T) {
	if text := (service.Options{}).String(); text != "" {
		t.Errorf("nothing is asked for: %q", text)
	}
	rng, asked := rand.New(rand.NewPCG(1, 2)), 0
	for range 200 {
		want := gen.NamedService(rng, "default/web", gen.Everything()).Options
		var got service.Options
		before := ""
		for key, value := range want.All() {
			asked++
			if key <= before {
				t.Fatalf("key %s comes after %s: they are not sorted, each once", key, before)
			}
			before = key
			if err := got.Set(key, value); err != nil {
				t.Fatalf("%s=%s: %v", key, value, err)
			}
		}
		if !got.Equal(want) {
			t.Fatalf("%+v comes back as %+v", want, got)
		}
	}
	if asked == 0 {
		t.Error("no service asked for anything")
	}
}

// TestOptionsRefuse: an unknown key or value changes nothing, and the error says what is allowed.
func TestOptionsRefuse(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"external-failover", "Pass", "not drop, pass or cluster; did you mean pass? drop is in force"},
		{"external-failover", "passs", "did you mean pass?"},
		{"external-failover", "elsewhere", "not drop, pass or cluster; drop is in force"},
		{"balance", "clinet", "not random, client, flow or least-connections; did you mean client? the node's"},
		{"balance", "hsah", "not random, client, flow or least-connections; the node's"},
		{"eject", "onn", "did you mean on?"},
		{"eject", "ON", "did you mean on?"},
		{"eject", "no", "not off, report or on; the node's"},
		{service.UDPHandlingAnnotation, "preserveDuringTermination", "did you mean PreserveDuringTermination?"},
		{"departed-connections", "kepe", "did you mean keep?"},
		{"departed-connections", "cutafter=30s", "did you mean cut-after?"},
		{"external-failover", "", "not drop, pass or cluster"},
		{"departed-connections", "cut-after", "not keep, cut or cut-after=TIME"},
		{"departed-connections", "cut-after=0s", "whole seconds from 1s to 1h"},
		{"departed-connections", "cut-after=1h0m1s", "whole seconds from 1s to 1h"},
		{"departed-connections", "cut-after=1500ms", "whole seconds from 1s to 1h"},
		{"departed-connections", "cut-after=-30s", "--nftproxy-conntrack-clean-established is in force"},
		{"departed-connections", "cut-after=30", "such as cut-after=30s"},
		{"departed-connections", "Keep", "not keep, cut or"},
		{"no-endpoints", "hold=", "whole seconds from 1s to 2m, such as hold=30s; refuse is in force"},
		{"no-endpoints", "hold=2m1s", "not refuse, hold or hold=TIME"},
		{"no-endpoints", "hold=1500ms", "not refuse, hold or hold=TIME"},
		{"no-endpoints", "hodl", "did you mean hold?"},
		{"slow-start", "", "such as 30s; new endpoints have their whole weight at once"},
		{"slow-start", "30", "whole seconds from 1s to 1h"},
		{"slow-start", "0s", "whole seconds from 1s to 1h"},
		{"slow-start", "-1s", "whole seconds from 1s to 1h"},
		{"slow-start", "999ms", "whole seconds from 1s to 1h"},
		{"slow-start", "1h0m1s", "whole seconds from 1s to 1h"},
		{"slow-start", "300000h", "whole seconds from 1s to 1h"},
		{"tcp-established-timeout", "", "not one of 1m, 5m, 10m, 30m, 1h, 2h, 6h, 12h, 24h, 72h or 168h; the node's " +
			"time-out is in force"},
		{"tcp-established-timeout", "3h", "not one of 1m"},
		{"tcp-established-timeout", "7200", "not one of 1m"},
		{"tcp-established-timeout", "-2h", "not one of 1m"},
		{"tcp-established-timeout", "10s", "not one of 1m"},
		{"udp-timeouts", "", "not UNREPLIED,REPLIED such as 30s,10m"},
		{"udp-timeouts", "30s", "with UNREPLIED of 5s, 10s, 30s, 1m, 5m or 10m, and REPLIED as long or longer, of 5s, " +
			"10s, 15s, 30s, 1m, 5m, 10m, 30m, 1h, 2h, 6h, 12h or 24h; the node's time-outs are in force"},
		{"udp-timeouts", "30s,10m,1h", "not UNREPLIED,REPLIED"},
		{"udp-timeouts", "10m,30s", "REPLIED as long or longer"},
		{"udp-timeouts", "30m,1h", "with UNREPLIED of 5s"},
		{"udp-timeouts", "31s,10m", "with UNREPLIED of 5s"},
		{"udp-timeouts", "15s,30s", "with UNREPLIED of 5s"},
		{"udp-timeouts", "30s,72h", "of 5s, 10s, 15s, 30s, 1m"},
		{"service.kubernetes.io/udp-connection-handling", "preserve", "not Default or PreserveDuringTermination; Default " +
			"is in force"},
		{"udp-connection-handling", "Default", "unknown key; did you mean service.kubernetes.io/udp-connection-handling? "},
		{"external-failure", "pass", "unknown key; there are nftproxy.io/"},
		{"", "pass", "unknown key; there are nftproxy.io/"},
	} {
		asked := service.Options{ExternalFailover: service.FailoverCluster}
		before := asked
		if err := asked.Set(c.key, c.value); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: %v, want ... %s ...", c.key, c.value, err, c.want)
		}
		if !asked.Equal(before) {
			t.Errorf("%s=%s changes %+v", c.key, c.value, asked)
		}
	}
}

// TestOptionsEqual: Options that differ in one field, whichever it is, are not equal.
func TestOptionsEqual(t *testing.T) {
	values := map[string]string{
		"balance": "client", "departed-connections": "cut", "eject": "on", "external-failover": "pass",
		"no-endpoints": "hold", "port-ranges": "80-90/TCP",
		"slow-start": "30s", "tcp-established-timeout": "2h", "udp-timeouts": "30s,10m", "source-ranges": "none",
		service.FlowsKey:                "1/16",
		service.UDPHandlingAnnotation:   "PreserveDuringTermination",
		service.SourcesPolicyAnnotation: "deny",
	}
	fields := 0
	for _, f := range reflect.VisibleFields(reflect.TypeFor[service.Options]()) {
		if f.Name != "_" {
			fields++
		}
	}
	if fields != len(values) {
		t.Errorf("%d fields, and values for %d of them", fields, len(values))
	}
	for key, value := range values {
		var asked, again service.Options
		for _, o := range []*service.Options{&asked, &again} {
			if err := o.Set(key, value); err != nil {
				t.Fatal(err)
			}
		}
		if asked.Equal(service.Options{}) || !asked.Equal(again) {
			t.Errorf("%s=%s: equal to none %t, to itself %t", key, value, asked.Equal(service.Options{}), asked.Equal(again))
		}
	}
}

// TestSourceRanges: bad source ranges are reported, and what is left of them holds. Nothing left admits nobody.
func TestSourceRanges(t *testing.T) {
	many := strings.Repeat("192.0.2.1/32,", service.MaxSourceRanges)
	for _, c := range []struct{ value, holds, problem string }{
		{"10.0.0.0/8", "10.0.0.0/8", ""},
		{" 10.1.2.3/8 ,, 2001:db8::1/32,10.5.0.0/16 ", "10.0.0.0/8,2001:db8::/32", ""},
		{"none", "none", ""},
		{"0.0.0.0/0", "0.0.0.0/0", ""},
		{"", "none", "no client outside is admitted"},
		{" , ", "none", "no client outside is admitted"},
		{"192.0.2.1", "none", `want "none", or ranges such as 192.0.2.0/24 or 2001:db8::/32 with commas between; 1 of 1 ` +
			`cannot be used, and admit no client, the first is "192.0.2.1"`},
		{"192.0.2.0/24,none", "192.0.2.0/24", `1 of 2 cannot be used`},
		{"192.0.2.0/24,10.0.0.0/33,fe80::%eth0/64", "192.0.2.0/24", `2 of 3 cannot be used, and admit no client, the first ` +
			`is "10.0.0.0/33"`},
		{"::ffff:10.0.0.0/104", "none", "1 of 1 cannot be used"},
		{many, "192.0.2.1/32", ""},
		{many + "10.0.0.0/8", "192.0.2.1/32", "1001 ranges, of which the first 1000 count; the others admit no client"},
	} {
		var o service.Options
		err := o.Set("source-ranges", c.value)
		if got := o.String(); got != "source-ranges="+c.holds {
			t.Errorf("%.60q is %s, want %s", c.value, got, c.holds)
		}
		if c.problem == "" && err != nil || c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
			t.Errorf("%.60q: %v, want %q", c.value, err, c.problem)
		}
	}
}

// TestSourcesAnd: an address is in both lists if it is in each.
func TestSourcesAnd(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	random := func() *service.Sources {
		if rng.IntN(10) == 0 {
			return nil
		}
		var list []netip.Prefix
		for range rng.IntN(6) {
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(32))})
			if rng.IntN(3) == 0 {
				a = netip.AddrFrom16([16]byte{15: byte(rng.IntN(32))})
			}
			list = append(list, netip.PrefixFrom(a, a.BitLen()-rng.IntN(6)))
		}
		return service.NewSources(list)
	}
	in := func(s *service.Sources, a netip.Addr) bool {
		return s == nil || slices.ContainsFunc(s.Ranges(), func(r netip.Prefix) bool { return r.Contains(a) })
	}
	for range 2000 {
		a, b := random(), random()
		both := a.And(b)
		for i := range 32 {
			for _, addr := range []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}),
				netip.AddrFrom16([16]byte{15: byte(i)})} {
				if in(both, addr) != (in(a, addr) && in(b, addr)) {
					t.Fatalf("%v and %v are %v, which is wrong for %s", a.Ranges(), b.Ranges(), both.Ranges(), addr)
				}
			}
		}
	}
}

// TestTimeouts: times may be written in any form. Each value has a name of its own, that comes back, and there are few
// of them.
func TestTimeouts(t *testing.T) {
	var o service.Options
	for key, value := range map[string]string{"udp-timeouts": " 60s, 0.5h", "tcp-established-timeout": "120m"} {
		if err := o.Set(key, value); err != nil {
			t.Errorf("%s=%s: %v", key, value, err)
		}
	}
	if got, want := o.String(), "tcp-established-timeout=2h udp-timeouts=1m,30m"; got != want {
		t.Errorf("read as %s, want %s", got, want)
	}
	if tcp, udp, sctp := o.TimeoutsOf(service.TCP).String(), o.TimeoutsOf(service.UDP).String(), o.TimeoutsOf(
		service.SCTP).String(); tcp != "tcp-2h" || udp != "udp-1m-30m" || sctp != "" {
		t.Errorf("the protocols have %q, %q and %q", tcp, udp, sctp)
	}
	names := map[string]bool{}
	keep := func(want service.Timeouts) {
		names[want.String()] = true
		if got := service.ParseTimeouts(want.String()); got != want {
			t.Errorf("%q is %+v, want %+v", want, got, want)
		}
	}
	for _, d := range service.EstablishedTimeouts() {
		keep(service.Timeouts{Protocol: service.TCP, Established: d})
	}
	for _, unreplied := range service.UnrepliedTimeouts() {
		for _, replied := range service.RepliedTimeouts() {
			if replied >= unreplied {
				keep(service.Timeouts{Protocol: service.UDP, Unreplied: unreplied, Replied: replied})
			}
		}
	}
	if len(names) != 70 {
		t.Errorf("%d names, want 70: docs/internals/options.md says so", len(names))
	}
	for _, text := range []string{"", "udp", "udp-30s", "udp-30s-2m", "tcp-", "tcp-3h", "sctp-2h", "udp-10m-30s",
		"tcp-2h-2h"} {
		if got := service.ParseTimeouts(text); got != (service.Timeouts{}) {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
