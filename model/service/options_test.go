package service_test

import (
	"math/rand/v2"
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
		if got != want {
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
		{"external-failover", "Pass", "not drop, pass or cluster; drop is in force"},
		{"external-failover", "", "not drop, pass or cluster"},
		{"departed-connections", "cut-after", "not keep, cut or cut-after=TIME"},
		{"departed-connections", "cut-after=0s", "whole seconds from 1s to 1h"},
		{"departed-connections", "cut-after=1h0m1s", "whole seconds from 1s to 1h"},
		{"departed-connections", "cut-after=1500ms", "whole seconds from 1s to 1h"},
		{"departed-connections", "cut-after=-30s", "--nftproxy-conntrack-clean-established is in force"},
		{"departed-connections", "cut-after=30", "such as cut-after=30s"},
		{"departed-connections", "Keep", "not keep, cut or"},
		{"service.kubernetes.io/udp-connection-handling", "preserve", "not Default or PreserveDuringTermination; Default is in force"},
		{"udp-connection-handling", "Default", "unknown key; there are nftproxy.io/"},
		{"external-failure", "pass", "unknown key; there are nftproxy.io/"},
		{"", "pass", "unknown key; there are nftproxy.io/"},
	} {
		asked := service.Options{ExternalFailover: service.FailoverCluster}
		before := asked
		if err := asked.Set(c.key, c.value); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: %v, want ... %s ...", c.key, c.value, err, c.want)
		}
		if asked != before {
			t.Errorf("%s=%s changes %+v", c.key, c.value, asked)
		}
	}
}
