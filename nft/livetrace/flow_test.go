package livetrace_test

import (
	"strings"
	"testing"

	"nftproxy/nft/livetrace"
)

// TestParseFlow: a flow is read in all forms, and printed in a form that is read again.
func TestParseFlow(t *testing.T) {
	for text, want := range map[string]string{
		"10.96.0.10:80":                             "10.96.0.10:80/tcp",
		"10.96.0.10:53/udp":                         "10.96.0.10:53/udp",
		" 10.96.0.10:53/UDP ":                       "10.96.0.10:53/udp",
		"10.244.1.7 -> 10.96.0.10:53/sctp":          "10.244.1.7 -> 10.96.0.10:53/sctp",
		"10.244.1.7:4000->10.96.0.10:80":            "10.244.1.7:4000 -> 10.96.0.10:80/tcp",
		"[fd00:96::a]:80":                           "[fd00:96::a]:80/tcp",
		"fd00::7 -> [fd00:96::a]:80":                "fd00::7 -> [fd00:96::a]:80/tcp",
		"[fd00::7] -> [fd00:96::a]:80":              "fd00::7 -> [fd00:96::a]:80/tcp",
		"[fd00::7]:4000 -> [fd00:96::a]:80/tcp":     "[fd00::7]:4000 -> [fd00:96::a]:80/tcp",
		"::ffff:10.244.1.7 -> [::ffff:10.0.0.1]:80": "10.244.1.7 -> 10.0.0.1:80/tcp",
	} {
		f, err := livetrace.ParseFlow(text)
		if err != nil || f.String() != want {
			t.Errorf("%q: %s, %v, want %s", text, f, err, want)
			continue
		}
		if again, err := livetrace.ParseFlow(f.String()); err != nil || again != f {
			t.Errorf("%q: %+v, %v, want %+v", f, again, err, f)
		}
	}
	for text, says := range map[string]string{
		"":                            "want [SOURCE[:PORT] ->] DESTINATION:PORT[/PROTOCOL]",
		"10.96.0.10":                  "want [SOURCE",
		"shop/cart:80":                "protocol \"cart:80\": want tcp, udp or sctp",
		"10.96.0.10:0":                "port 0",
		"10.96.0.10:80/icmp":          "want tcp, udp or sctp",
		"10.96.0.10:80/":              "want tcp, udp or sctp",
		"-> 10.96.0.10:80":            "source \"\"",
		"10.244.0.0/16 -> 10.0.0.1:1": "source",
		"fd00::7 -> 10.96.0.10:80":    "different families",
		"[fe80::1%eth0]:80":           "zone",
		"fe80::1%lo -> [fd00::1]:80":  "zone",
	} {
		if f, err := livetrace.ParseFlow(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v, want an error with %q", text, f, err, says)
		}
	}
}
