package service_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nftproxy/model/service"
)

// TestOtherOption: a value of another project's annotation is read only where it means what ours means.
func TestOtherOption(t *testing.T) {
	const calico, cilium = "lb.projectcalico.org/", "service.cilium.io/"
	for _, c := range []struct {
		annotation, value string
		affinity          bool
		want              string
	}{
		{cilium + "lb-algorithm", "random", false, "balance=random"},
		{cilium + "lb-algorithm", "random", true, "balance=random"},
		{cilium + "lb-algorithm", "maglev", false, "balance=flow"},
		{cilium + "lb-algorithm", "maglev", true, "balance=client"},
		{cilium + "lb-algorithm", "Maglev", false, ""}, // Cilium does not read it either
		{cilium + "lb-algorithm", "least-conn", false, ""},
		{cilium + "lb-algorithm", "client", false, ""},
		{cilium + "lb-algorithm", "", false, ""},
		{calico + "external-traffic-strategy", "maglev", false, "balance=flow"},
		{calico + "external-traffic-strategy", "MAGLEV", true, "balance=client"},
		{calico + "external-traffic-strategy", "random", false, ""},
		{calico + "no-endpoints-action", "Forward", false, "external-failover=pass"},
		{calico + "no-endpoints-action", "forward", false, "external-failover=pass"},
		{calico + "no-endpoints-action", "Drop", false, ""},
		{calico + "no-endpoints-action", "pass", false, ""},
		{cilium + "src-ranges-policy", "deny", false, cilium + "src-ranges-policy=deny"},
		{cilium + "src-ranges-policy", "Deny", false, cilium + "src-ranges-policy=deny"},
		{cilium + "src-ranges-policy", "allow", false, ""},
		{cilium + "src-ranges-policy", "denied", false, ""},
		{cilium + "affinity", "local", false, ""},
		{cilium + "type", "LoadBalancer", false, ""},
		{cilium + "weight", "5", false, ""},
		{"nftproxy.io/balance", "flow", false, ""},
		{"nftproxy.io/lb-algorithm", "maglev", false, ""},
	} {
		key, ours, found := service.OtherOption(c.annotation, c.value, c.affinity)
		if got := key + "=" + ours; found != (c.want != "") || found && got != c.want {
			t.Errorf("%s=%s (affinity %t) is %s, %t, want %s", c.annotation, c.value, c.affinity, got, found, c.want)
		}
		if !found {
			continue
		}
		if !slices.Contains(service.OtherAnnotations(), c.annotation) {
			t.Errorf("%s is not among the annotations to be read", c.annotation)
		}
		var o service.Options
		if err := o.Set(key, ours); err != nil {
			t.Errorf("%s=%s: %v", key, ours, err)
		}
	}
}

// TestSourcesPolicyIsNoOptionOfOurs: nobody is told to write it, and it comes back as it is.
func TestSourcesPolicyIsNoOptionOfOurs(t *testing.T) {
	if _, ours := service.OptionKey(service.SourcesPolicyAnnotation); ours || slices.Contains(slices.Collect(
		service.AllOptions()), service.SourcesPolicyAnnotation) {
		t.Error("the annotation is said to be ours")
	}
	var o service.Options
	if err := o.Set("balence", "x"); err == nil || strings.Contains(err.Error(), "cilium") {
		t.Errorf("what there is: %v", err)
	}
	if err := o.Set(service.SourcesPolicyAnnotation, "deny"); err != nil || o.String() != service.OptionAnnotation(
		service.SourcesPolicyAnnotation)+"=deny" {
		t.Errorf("%v %s", err, o)
	}
}

// TestAllBut: an address is in what the ranges leave out if it is in none of them, whatever ranges they are.
func TestAllBut(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 500 {
		var denied []netip.Prefix
		for range rng.IntN(8) {
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(32))})
			if rng.IntN(2) == 0 {
				a = netip.AddrFrom16([16]byte{15: byte(rng.IntN(32))})
			}
			bits := a.BitLen() - rng.IntN(6)
			if rng.IntN(20) == 0 {
				bits = rng.IntN(9)
			}
			denied = append(denied, netip.PrefixFrom(a, bits))
		}
		left, ok := service.AllBut(denied)
		if !ok {
			t.Fatalf("%v leaves too much", denied)
		}
		again, ok := service.AllBut(left.Ranges())
		if !ok {
			t.Fatalf("%v leaves %v, which leaves too much", denied, left.Ranges())
		}
		for i := range 64 {
			for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.AddrFrom4([4]byte{byte(i * 4)}),
				netip.AddrFrom16([16]byte{15: byte(i)}), netip.AddrFrom16([16]byte{0: byte(i * 4)})} {
				in := slices.ContainsFunc(denied, func(r netip.Prefix) bool { return r.Contains(a) })
				if left.Contains(a) == in {
					t.Fatalf("%v leaves %v, which is wrong for %s", denied, left.Ranges(), a)
				}
				if again.Contains(a) != in {
					t.Fatalf("%v comes back as %v, which is wrong for %s", denied, again.Ranges(), a)
				}
			}
		}
	}
}

// TestAllButForms: as few ranges as there can be, and a bound on them.
func TestAllButForms(t *testing.T) {
	for denied, want := range map[string]string{
		"":                       "0.0.0.0/0 ::/0",
		"0.0.0.0/0":              "::/0",
		"0.0.0.0/0 ::/0":         "",
		"0.0.0.0/1":              "128.0.0.0/1 ::/0",
		"248.0.0.0/5 ::/0":       "0.0.0.0/1 128.0.0.0/2 192.0.0.0/3 224.0.0.0/4 240.0.0.0/5",
		"0.0.0.0/2 64.0.0.0/2":   "128.0.0.0/1 ::/0",
		"10.0.0.0/1 10.1.2.3/32": "128.0.0.0/1 ::/0",
		"::/1 8000::/2":          "0.0.0.0/0 c000::/2",
	} {
		left, ok := service.AllBut(prefixes(denied))
		var got []string
		for _, r := range left.Ranges() {
			got = append(got, r.String())
		}
		if text := strings.Join(got, " "); !ok || text != want {
			t.Errorf("%s leaves %s, %t, want %s", denied, text, ok, want)
		}
	}
	var many []netip.Prefix
	for i := range 256 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(i), 1, 2, 3}), 32))
	}
	if left, ok := service.AllBut(many); ok || len(left.Ranges()) != 0 || left == nil {
		t.Errorf("256 far addresses leave %d ranges, %t, want none", len(left.Ranges()), ok)
	}
	if left, ok := service.AllBut(many[:150]); !ok || len(left.Ranges()) < 3000 {
		t.Errorf("150 far addresses leave %d ranges, %t", len(left.Ranges()), ok)
	}
}
