package main

import (
	"bytes"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/conntrack"
	"nftproxy/model/service"
)

// TestConntrackGolden: what people and programs read, as it stands in
// testdata/conntrack.
func TestConntrackGolden(t *testing.T) {
	s, err := service.Parse(strings.NewReader(`node node-1
  address 192.168.0.2
  host-address 192.168.0.2
service-cidr 10.96.0.0/16
service kube-system/kube-dns created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  cluster-ip fd00:96::a
  port dns udp 53
    endpoint 10.244.1.5:53 node-1 ready serving
    endpoint [fd00:244:1::5]:53 node-2 ready serving
service shop/cart created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.20
  port - tcp 80 node-port 30080
    endpoint 10.244.2.9:8080 node-2 ready serving
`))
	if err != nil {
		t.Fatal(err)
	}
	index := conntrack.NewIndex(conntrack.Options{})
	index.Update(s)
	index.Presume()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	tuple := func(src, dst string) conntrack.Tuple {
		return conntrack.Tuple{Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst)}
	}
	flows := []conntrack.Flow{
		{
			Protocol: service.UDP, Original: tuple("10.244.1.7:40001", "10.96.0.10:53"), Reply: tuple("10.244.1.5:53", "10.244.1.7:40001"),
			Status: conntrack.DstNAT | conntrack.SeenReply, Timeout: 25 * time.Second, Start: now.Add(-7 * time.Second),
		},
		{
			Protocol: service.UDP, Original: tuple("10.244.1.7:40002", "10.96.0.10:53"), Reply: tuple("10.244.1.4:53", "10.244.1.7:40002"),
			Status: conntrack.DstNAT | conntrack.SeenReply | conntrack.Assured, Timeout: 110 * time.Second, Start: now.Add(-50 * time.Hour),
		},
		{
			Protocol: service.UDP, Original: tuple("[fd00:244:1::7]:40001", "[fd00:96::a]:53"), Reply: tuple("[fd00:244:1::5]:53", "[fd00:244:1::7]:40001"),
			Status: conntrack.DstNAT, Timeout: 30 * time.Second,
		},
		{
			Protocol: service.TCP, Original: tuple("203.0.113.9:51000", "192.168.0.2:30080"), Reply: tuple("10.244.2.9:8080", "192.168.0.2:51000"),
			Status: conntrack.DstNAT | conntrack.SrcNAT | conntrack.SeenReply | conntrack.Assured, TCPState: conntrack.TCPEstablished, Timeout: 24 * time.Hour,
		},
		{
			Protocol: service.UDP, Original: tuple("10.244.1.7:40003", "10.96.0.99:53"), Reply: tuple("10.96.0.99:53", "10.244.1.7:40003"),
			Timeout: 30 * time.Second,
		},
		{
			Protocol: 1, Original: tuple("10.244.1.7:77", "10.96.0.98:2048"), Reply: tuple("10.96.0.98:77", "10.244.1.7:0"),
			Timeout: 30 * time.Second,
		},
	}
	rows := []flowRow{}
	for _, f := range flows {
		if r, ok := newFlowRow(f, index, now); ok {
			rows = append(rows, r)
		}
	}
	one, limit := 5, 262144
	settings := sysctlList{Entries: &one, Limit: &limit, Settings: []settingRow{
		{Name: "net.netfilter.nf_conntrack_max", Current: "262144", Wanted: "131072", AtLeast: true},
		{Name: "net.netfilter.nf_conntrack_tcp_timeout_established", Current: "432000", Wanted: "86400", Differs: true},
		{Name: "net.netfilter.nf_conntrack_udp_timeout", Current: "30"},
		{Name: "net.netfilter.nf_conntrack_udp_timeout_stream", Wanted: "180", Error: "read net.netfilter.nf_conntrack_udp_timeout_stream: permission denied"},
	}}
	for name, write := range map[string]func(*bytes.Buffer) error{
		"list.txt":    func(b *bytes.Buffer) error { return writeFlows(b, rows) },
		"list.json":   func(b *bytes.Buffer) error { return writeJSON(b, flowList{Source: "table", Flows: rows}) },
		"clean.json":  func(b *bytes.Buffer) error { return writeJSON(b, cleanResult{Source: "table", Flows: rows[:0]}) },
		"sysctl.txt":  func(b *bytes.Buffer) error { return settings.write(b) },
		"sysctl.json": func(b *bytes.Buffer) error { return writeJSON(b, settings) },
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := write(&got); err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile("testdata/conntrack/" + name)
			if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("-want +got:\n%s\nall of it:\n%s", diff, got.String())
			}
		})
	}
}
