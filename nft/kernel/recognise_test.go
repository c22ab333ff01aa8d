package kernel_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/netfilter"
)

// Read recognises rules of known statements, even if they are not wanted. Other rules end with
// Unknown from the first statement on that differs from what Apply would write.
func TestReadRecognises(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	for _, f := range nft.Families() {
		t.Run(f.String(), func(t *testing.T) {
			ns, c := open(t)
			prefixes := map[nft.Family][]string{
				nft.IPv4: {"10.96.0.0/12", "10.0.0.0/8", "10.1.2.3/32", "0.0.0.0/0", "127.0.0.0/9"},
				nft.IPv6: {"fd00:96::/108", "fd00::/8", "fd00::1/128", "::/0", "2001:db8::/31"},
			}[f]
			var want []nft.Rule
			for _, field := range []nft.Field{nft.Saddr, nft.Daddr} {
				for i, text := range prefixes {
					want = append(want, nft.Rule{nft.MatchAddr{Field: field, Not: i == 1, Prefix: netip.MustParsePrefix(text)},
						nft.Verdict{Code: nft.Drop}})
				}
				want = append(want, nft.Rule{nft.MatchLocal{Field: field, Not: field == nft.Daddr}, nft.Verdict{Code: nft.Return}})
			}
			want = append(want,
				nft.Rule{nft.MatchLocal{Field: nft.Daddr, Input: true}, nft.Verdict{Code: nft.Return}},
				nft.Rule{
					nft.MatchAddr{Field: nft.Daddr, Prefix: netip.MustParsePrefix(prefixes[0])},
					nft.MatchLocal{Field: nft.Daddr, Not: true}, nft.Verdict{Code: nft.Drop},
				},
				nft.Rule{nft.MatchInput{Name: "cni0"}, nft.VMap{Key: serviceKey, Map: "services"}},
				nft.Rule{nft.MatchInput{Not: true, Name: "veth", Prefix: true}, jump("refuse")},
				nft.Rule{nft.MatchProto{Protocol: 6}, goTo("refuse")},
				nft.Rule{nft.Counter{}, nft.Verdict{Code: nft.Drop}},
				nft.Rule{nft.MatchProto{Protocol: 6}, nft.Counter{}, goTo("refuse")},
				nft.Rule{nft.InSet{Key: serviceKey[:1], Set: "addresses"}, nft.VMap{Key: nodeKey, Map: "node-ports"}},
			)
			want = append(want,
				nft.Rule{nft.SetMark{Mask: 4}, nft.Verdict{Code: nft.Return}},
				nft.Rule{nft.ClearMark{Mask: 4}, nft.Verdict{Code: nft.Return}},
				nft.Rule{nft.MatchMark{Mask: 4}, nft.Verdict{Code: nft.Return}},
				nft.Rule{nft.SetLabel{Bit: 31}, nft.Verdict{Code: nft.Return}},
				nft.Rule{nft.MatchLabel{Bit: 32}, nft.Verdict{Code: nft.Return}},
				nft.Rule{nft.MatchDNATed{}, nft.Verdict{Code: nft.Return}},
				nft.Rule{nft.MatchProto{Protocol: 6}, nft.Reject{TCPReset: true}}, nft.Rule{nft.Reject{}},
				nft.Rule{nft.Verdict{Code: nft.Drop}, nft.Comment("x")}, nft.Rule{nft.Comment("nothing else")},
				nft.Rule{nft.Counter{}, nft.Verdict{Code: nft.Return}, nft.Comment(strings.Repeat("c", nft.MaxComment))},
				nft.Rule{nft.Sample{Of: 16}, nft.SetLabel{Bit: 111}, nft.Log{Prefix: "1/16", Group: 28000, Bytes: 64}},
				nft.Rule{nft.Sample{Of: 16}, nft.Limit{PerSecond: 1000, Burst: 1000},
					nft.Log{Prefix: "1/16 no-endpoints", Group: 28000, Bytes: 64}},
				nft.Rule{nft.Limit{PerSecond: 1000, Burst: 1000}, nft.Log{Prefix: "1/1", Group: 28000, Bytes: 64}},
				nft.Rule{nft.Log{Prefix: "1/1 no-endpoints", Group: 65535, Bytes: 128}, nft.Comment("x")},
				nft.Rule{nft.MatchDNATed{}, nft.SNATTo{Addr: netip.MustParsePrefix(prefixes[2]).Addr()}},
				nft.Rule{nft.MatchEcho{}, nft.Limit{PerSecond: 7, Burst: 9},
					nft.DNATTo{Addr: netip.MustParsePrefix(prefixes[2]).Addr()}},
				nft.Rule{nft.DNAT{Key: serviceKey, Mod: 2, Map: "endpoints"}},
				nft.Rule{nft.DNAT{Key: serviceKey, Mod: 2, Hash: nft.Fields{nft.Saddr}, Map: "endpoints"}},
				nft.Rule{nft.DNAT{Key: serviceKey, Mod: 251, Hash: nft.Fields{nft.Saddr, nft.Sport}, Map: "endpoints"}},
				nft.Rule{nft.InSet{Key: nft.Fields{nft.OrigDaddr}, Set: "addresses"}},
				nft.Rule{nft.Update{Map: "affinity", Key: clientKey, Data: target, Timeout: 3 * time.Hour}},
				nft.Rule{nft.Update{Map: "affinity", Key: origClientKey, Data: target, Timeout: time.Second}},
			)
			// A rule of another program, and what Read returns of it.
			foreign := [][2]string{
				{`ip daddr 10.0.0.1-10.0.0.9 drop`, ""}, {`iif lo drop`, ""}, {`th dport 80 drop`, ""},
				{`tcp dport 80 drop`, "meta l4proto tcp"},
				{`meta mark set 5`, ""}, {`fib daddr type broadcast drop`, ""},
				{`fib saddr . iif type local drop`, ""}, {`ip saddr & 255.0.255.0 == 10.0.7.0 drop`, ""},
				{`th dport != 80 iifname "cni*" drop`, ""},
				{`limit rate 1/minute drop`, ""}, {`limit rate 1/second drop`, "limit rate 1/second burst 5 packets"},
				{`limit rate over 1/second drop`, ""}, {`limit rate 1 kbytes/second drop`, ""},
				{`ip saddr @addresses ip daddr != @addresses drop`, "ip saddr @addresses"},
				{`iifname "cni0" icmp type echo-reply drop`, `iifname "cni0"`}, {`icmp code 1 drop`, "meta l4proto icmp"},
				{`dnat to 10.0.0.1-10.0.0.9`, ""}, {`dnat to 10.0.0.1 persistent`, ""}, {`ip protocol 6 drop`, ""},
				{`ct mark 5 drop`, ""}, {`ct mark set 5`, ""}, {`ct label != 5 drop`, ""},
				{`ip saddr 10.0.0.0/8 meta mark set 5 drop`, "ip saddr 10.0.0.0/8"}, {`numgen inc mod 2 0 drop`, ""},
				{`numgen random mod 2 0 drop`, ""},
				{nft.Sample{Of: 2}.Text(f) + ` drop`, nft.Sample{Of: 2}.Text(f)},
				{`jhash ip saddr . th sport . ip daddr . th dport mod 2 seed 0x1 0 drop`, ""},
				{`log prefix "a" group 7 drop`, ""}, {`log group 7 snaplen 64 drop`, ""},
				{`jhash ip saddr mod 2 0 drop`, ""}, {`symhash mod 2 0 drop`, ""},
			}
			p := everything()
			mine := &nft.Chain{Name: "mine", Rules: want}
			p.Table(f).Chains = p.Table(f).Chains.Set(mine.Name, mine)
			must(t, c.Apply(load(p)))
			must(t, c.Close())
			if f == nft.IPv6 {
				foreign = nil
			}
			for _, rule := range foreign {
				must(t, cmd.Load(ns, fmt.Sprintf("add rule ip %s mine %s", tableName, rule[0])))
			}

			c = openIn(t, ns)
			got, err := c.Read(&nft.Program{IPv4: newTable(nft.IPv4, sets(), nil, nil), IPv6: newTable(nft.IPv6, sets(), nil,
				nil)})
			must(t, err)
			var wanted, had []string
			for _, r := range want {
				wanted = append(wanted, r.Text(f))
			}
			for _, rule := range foreign {
				wanted = append(wanted, strings.TrimSpace(rule[1]+" "+nft.Unknown{}.Text(f)))
			}
			for _, r := range got.Table(table(f)).Chains["mine"].Rules {
				had = append(had, r.Text(f))
			}
			if diff := cmp.Diff(wanted, had); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRecognisePadding: some kernels put padding before each number of 64 bits.
func TestRecognisePadding(t *testing.T) {
	padded := 0
	for _, f := range nft.Families() {
		for _, chain := range everything().Table(f).Chains.All() {
			for _, rule := range chain.Rules {
				have, n, err := kernel.RecognisePadded(rule, f)
				must(t, err)
				if have.Text(f) != rule.Text(f) {
					t.Errorf("%s, with %d paddings: %s", rule.Text(f), n, have.Text(f))
				}
				padded += min(n, 1)
			}
		}
	}
	if padded < 10 {
		t.Errorf("only %d rules have numbers of 64 bits", padded)
	}
}
