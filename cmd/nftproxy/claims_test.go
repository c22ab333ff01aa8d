package main

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"nftproxy/watch"
)

// TestOwnPorts: what the flags say of the ports that no Service takes.
func TestOwnPorts(t *testing.T) {
	for _, test := range []struct {
		flags           []string
		metrics, health string
		want            []watch.OwnPort
	}{
		{nil, defaultMetricsAddress, defaultHealthAddress, []watch.OwnPort{
			{Port: 22}, {Port: 10249, Addr: netip.MustParseAddr("127.0.0.1")}, {Port: 10256},
		}},
		{[]string{"--nftproxy-protected-node-ports="}, "", "", nil},
		{[]string{"--nftproxy-protected-node-ports=22,8443"}, "[::]:1", "no address", []watch.OwnPort{{Port: 1}, {Port: 22}, {Port: 8443}}},
	} {
		var o claimOptions
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.addFlags(f)
		if err := f.Parse(test.flags); err != nil {
			t.Fatal(err)
		}
		if err := o.parse(); err != nil {
			t.Fatal(err)
		}
		got := o.watchOptions(ownServers(test.metrics, test.health, ""))
		if diff := cmp.Diff(test.want, got.OwnPorts, cmpopts.IgnoreFields(watch.OwnPort{}, "Whose"), cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty(),
			cmpopts.SortSlices(func(a, b watch.OwnPort) bool { return a.Port < b.Port })); diff != "" {
			t.Errorf("%v (-want +got):\n%s", test.flags, diff)
		}
		if got.IgnoreExternalIPs || got.MaxElements != 1<<18 || got.MaxAffinityPorts != 2000 {
			t.Errorf("%v: %+v", test.flags, got)
		}
	}
}

// TestClaimsReachTheWatcher: what the command line says of claims is what the daemon
// hands to its watcher.
func TestClaimsReachTheWatcher(t *testing.T) {
	c, err := commandLine{
		"--hostname-override=node-1", "--nftproxy-protected-node-ports=2222", "--feature-gates=AllowServiceExternalIPs=false",
		"--healthz-bind-address=", "--metrics-bind-address=", "--nftproxy-service-proxy-name=other",
	}.config(nil)
	if err != nil {
		t.Fatal(err)
	}
	got := c.Objects
	if got.ProxyName != "other" {
		t.Errorf("the proxy's name is %q", got.ProxyName)
	}
	if len(got.OwnPorts) != 1 || got.OwnPorts[0].Port != 2222 || !got.IgnoreExternalIPs {
		t.Errorf("own ports %+v, externalIPs ignored: %t; want port 2222 and true", got.OwnPorts, got.IgnoreExternalIPs)
	}
}
