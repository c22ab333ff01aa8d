package service_test

import (
	"net/netip"
	"testing"

	"nftproxy/model/service"
)

func TestParseRange(t *testing.T) {
	for text, want := range map[string]string{
		"":                 `"" is not a range: it is empty`,
		"10.0.0.0":         `"10.0.0.0" is not a range: it has no /LENGTH`,
		"10.0.0.0/33":      `"10.0.0.0/33" is not a range: the length "33" is not in 0 to 32`,
		"fd00::/129":       `"fd00::/129" is not a range: the length "129" is not in 0 to 128`,
		"10.0.0.0/":        `"10.0.0.0/" is not a range: the length "" is not in 0 to 32`,
		"10.0.0/8":         `"10.0.0/8" is not a range: "10.0.0" is not an IP address`,
		"pods":             `"pods" is not a range: "pods" is not an IP address`,
		"fe80::1%eth0/64":  `"fe80::1%eth0/64" is not a range: a range has no zone`,
		"10.0.0.0/8/8":     `"10.0.0.0/8/8" is not a range: the length "8/8" is not in 0 to 32`,
		"10.244.0.1/16":    "",
		"fd00:244::/56":    "",
		"::ffff:10.0.0.0/": `"::ffff:10.0.0.0/" is not a range: the length "" is not in 0 to 128`,
	} {
		p, err := service.ParseRange(text)
		switch {
		case want == "" && (err != nil || p != netip.MustParsePrefix(text)):
			t.Errorf("%q: %v, %v", text, p, err)
		case want != "" && (err == nil || err.Error() != want):
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"010.0.0.0/8": "10.0.0.0/8", "10.244.001.000/024": "10.244.1.0/24", "192.168.00.09/24": "192.168.0.9/24",
		"::ffff:010.0.0.0/104": "", "10..0.0.0/8": "", "10.0.0.0.0/8": "", "0/0.0.0.0": "", "fd00::010.0.0.1/64": "",
	} {
		if p, err := service.ParseRange(text); err == nil != (want != "") || err == nil && p.String() != want {
			t.Errorf("%q: %v, %v, want %q", text, p, err, want)
		}
	}
}
