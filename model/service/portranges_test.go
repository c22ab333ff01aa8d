package service_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"nftproxy/model/service"
)

// TestPortRangesAgainstOracle: whatever the order and overlaps of a list, the option has the ports of its ranges, each
// protocol its own, sorted and joined; and what it says of itself is read as the same.
func TestPortRangesAgainstOracle(t *testing.T) {
	edges := []int{1, 2, 3, 79, 80, 81, 32767, 65533, 65534, 65535}
	rng := rand.New(rand.NewPCG(1, 32))
	for range 300 {
		want := map[service.Protocol]map[uint16]bool{service.TCP: {}, service.UDP: {}, service.SCTP: {}}
		var words []string
		for range 1 + rng.IntN(service.MaxPortRanges) {
			first, last := edges[rng.IntN(len(edges))], edges[rng.IntN(len(edges))]
			first, last = min(first, last), max(first, last)
			if last-first > 100 {
				last = first
			}
			p := []service.Protocol{service.TCP, service.UDP, service.SCTP}[rng.IntN(3)]
			for port := first; port <= last; port++ {
				want[p][uint16(port)] = true
			}
			word := fmt.Sprintf("%d-%d/%s", first, last, strings.ToUpper(p.String()))
			if first == last && rng.IntN(2) == 0 {
				word = fmt.Sprintf(" %d/%s ", first, strings.ToUpper(p.String()))
			}
			words = append(words, word)
		}
		var o, again service.Options
		if err := o.Set("port-ranges", strings.Join(words, ",")); err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		for p, ports := range want {
			ranges, last := o.PortRanges.Of(p), -1
			for r := range ranges.All() {
				if int(r.First) <= last+1 || r.First > r.Last {
					t.Fatalf("%q: %s: %s are not sorted with gaps", words, p, ranges)
				}
				last = int(r.Last)
			}
			for port := range 1 << 16 {
				if ranges.Has(uint16(port)) != ports[uint16(port)] {
					t.Fatalf("%q: %s: %s has %d: %t", words, p, ranges, port, !ports[uint16(port)])
				}
			}
		}
		if err := again.Set("port-ranges", string(o.PortRanges)); err != nil || !again.Equal(o) {
			t.Fatalf("%q is read as %+v, then as %+v, %v", words, o, again, err)
		}
	}
}

// TestPortRangesRefuse: a list that cannot be used is refused as a whole, and the error names the word and what is
// allowed.
func TestPortRangesRefuse(t *testing.T) {
	const want = "want a list such as 5060/TCP,10000-20000/UDP, of TCP, UDP and SCTP"
	full := strings.TrimSuffix(strings.Repeat("1/TCP,", service.MaxPortRanges), ",")
	if err := new(service.Options).Set("port-ranges", full); err != nil {
		t.Errorf("%d ranges: %v", service.MaxPortRanges, err)
	}
	for value, says := range map[string][]string{
		"":                                  {`""`, want},
		",":                                 {`""`, want},
		"80/TCP,":                           {`""`, want},
		"80":                                {`unknown protocol ""`, want},
		"80/":                               {`unknown protocol ""`, want},
		"80/ICMP":                           {`unknown protocol "ICMP"`, want},
		"80/TCP/UDP":                        {`unknown protocol "TCP/UDP"`, want},
		"/TCP":                              {`"" is not a range of ports from 1 to 65535`, want},
		"0/TCP":                             {`"0" is not a range`},
		"0-80/UDP":                          {`"0-80" is not a range`},
		"65536/UDP":                         {`"65536" is not a range`},
		"1-65536/UDP":                       {`"1-65536" is not a range`},
		"90-80/UDP":                         {`"90-80" is not a range`},
		"80-/UDP":                           {`"80-" is not a range`},
		"-80/UDP":                           {`"-80" is not a range`},
		"80-90-100/UDP":                     {`"80-90-100" is not a range`},
		"+80/UDP":                           {`"+80" is not a range`},
		"80 - 90/UDP":                       {`"80 - 90" is not a range`},
		"1/TCP;2/TCP":                       {`unknown protocol`, want},
		"http/TCP":                          {`"http" is not a range`},
		"80/TCP,81/TCP,x/TCP":               {`"x" is not a range`},
		full + ",1/TCP":                     {"more than 16 ranges; none is served"},
		strings.Repeat("9", 1000) + "/UDP":  {`"99999999999999999999" is not a range`},
		"80/" + strings.Repeat("UDP", 1000): {`unknown protocol "UDPUDPUDPUDPUDPUDPUD"`},
		strings.Repeat("1/TCP,", 100_000):   {"more than 16 ranges"},
	} {
		o := service.Options{PortRanges: "7/TCP"}
		err := o.Set("port-ranges", value)
		if err == nil {
			t.Errorf("%.40q is read as %q", value, o.PortRanges)
			continue
		}
		for _, words := range says {
			if !strings.Contains(err.Error(), words) {
				t.Errorf("%.40q: %v, want ... %s ...", value, err, words)
			}
		}
		if o.PortRanges != "7/TCP" {
			t.Errorf("%.40q changes the ranges to %q", value, o.PortRanges)
		}
		if n := len(err.Error()); n > 200 {
			t.Errorf("%.40q: a message of %d bytes", value, n)
		}
	}
}

// TestPortRangesHas: Has agrees with All.
func TestPortRangesHas(t *testing.T) {
	for _, r := range []service.PortRanges{"", "1-65535", "53", "65535", "80,443", "1,3-5,65534-65535",
		"5060,10000-20000,30000"} {
		for port := range 1 << 16 {
			want := false
			for one := range r.All() {
				want = want || one.First <= uint16(port) && uint16(port) <= one.Last
			}
			if got := r.Has(uint16(port)); got != want {
				t.Fatalf("%q has %d: %t", r, port, got)
			}
		}
	}
}

// BenchmarkPortRangesHas is what each connection to ranges costs the clean-up of connection tracking.
func BenchmarkPortRangesHas(b *testing.B) {
	r := service.PortRanges(
		"10001-10002,10004-10005,10007-10008,10010-10011,10013-10014,10016-10017,10019-10020,10022-10023,20001-20002," +
			"20004-20005,20007-20008,20010-20011,20013-20014,20016-20017,20019-20020,20022-20023")
	for b.Loop() {
		r.Has(30000)
	}
}
