package explain_test

import (
	"errors"
	"testing"

	"nftproxy/look/explain"
)

// TestParseDestination: what is read is written in one form, and nothing else of the text is left.
func TestParseDestination(t *testing.T) {
	for text, want := range map[string]string{
		"10.96.0.10:53": "10.96.0.10:53/tcp", "10.96.0.10:53/udp": "10.96.0.10:53/udp",
		"[fd00:96::a]:53/SCTP": "[fd00:96::a]:53/sctp",
		"10.96.0.10/icmp":      "10.96.0.10/icmp", "[fd00::1]/icmp": "fd00::1/icmp",
		"[::ffff:10.0.0.1]:80": "10.0.0.1:80/tcp",
	} {
		d, err := explain.ParseDestination(text)
		if err != nil || d.String() != want {
			t.Errorf("%s: %s, %v; want %s", text, d, err, want)
		}
		if again, err := explain.ParseDestination(d.String()); err != nil || again != d {
			t.Errorf("%s: %v, %v; want %v", d, again, err, d)
		}
	}
	for text, want := range map[string]uint8{"10.0.0.1:1": 6, "10.0.0.1:1/udp": 17, "10.0.0.1:1/sctp": 132,
		"10.0.0.1/icmp": 1, "fd00::1/icmp": 58} {
		if d, err := explain.ParseDestination(text); err != nil || d.Protocol != want {
			t.Errorf("%s: protocol %d, %v; want %d", text, d.Protocol, err, want)
		}
	}
	for _, text := range []string{
		"", "10.96.0.10", "10.96.0.10:0", "10.96.0.10:70000", "host:80", "10.96.0.10:80/http", "10.96.0.10:80/icmp",
		"10.96.0.10:80/",
		"[fe80::1%eth0]:80", "fe80::1%$(id)/icmp", "10.96.0.1:80/tcp;id", "10.96.0.1:80;id/tcp", "10.96.0.1;id/icmp",
		" 10.96.0.1:80",
	} {
		if d, err := explain.ParseDestination(text); !errors.Is(err, explain.ErrQuestion) {
			t.Errorf("%q: %s, %v", text, d, err)
		}
	}
}

// TestParseOrigin: the same for clients.
func TestParseOrigin(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "node": "node", "10.0.0.1": "10.0.0.1", "10.0.0.1@eth0": "10.0.0.1@eth0", "::ffff:10.0.0.1": "10.0.0.1",
		"fd00:0::1@cali0123456789a": "fd00::1@cali0123456789a",
	} {
		if o, err := explain.ParseOrigin(text); err != nil || o.String() != want {
			t.Errorf("%q: %q, %v; want %q", text, o, err, want)
		}
	}
	for _, text := range []string{"somewhere", "@eth0", "@", "node@eth0", "node@", "fe80::1%eth0", "10.0.0.1@",
		"10.0.0.1@a b", "10.0.0.1@a/b", "10.0.0.1@sixteen-letters-", "10.0.0.1@\u202e", "10.0.0.1;id"} {
		if o, err := explain.ParseOrigin(text); !errors.Is(err, explain.ErrQuestion) {
			t.Errorf("%q: %q, %v", text, o, err)
		}
	}
}
