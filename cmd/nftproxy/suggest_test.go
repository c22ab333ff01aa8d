package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestSuggestions: the error about a mistyped command or flag names the one that was meant.
func TestSuggestions(t *testing.T) {
	for line, want := range map[string]string{
		"expalin 10.96.0.1:80":            `unknown command "expalin" for "nftproxy": did you mean "explain"?`,
		"get servces":                     `unknown command "servces" for "nftproxy get": did you mean "services"?`,
		"conntrack lst":                   `did you mean "list"?`,
		"frobnicate":                      `unknown command "frobnicate" for "nftproxy"`,
		"run --nftproxy-ejct=on":          "unknown flag: --nftproxy-ejct: did you mean --nftproxy-eject?",
		"run --eject=on":                  "unknown flag: --eject: did you mean --nftproxy-eject?",
		"run --cluster-cdir=10.0.0.0/8":   "did you mean --cluster-cidr?",
		"verify --nodeport-adresses=all":  "did you mean --nodeport-addresses?",
		"top --servce=a/b":                "did you mean --service?",
		"explain --form node 10.0.0.1:80": "did you mean --from?",
		"rum --config x":                  `unknown command "rum" for "nftproxy": did you mean "run"?`,
		"get srvices --namespce a":        `unknown command "srvices" for "nftproxy get": did you mean "services"?`,
		"--config=config.conf":            "unknown flag: --config: did you mean nftproxy run --config?",
		"completion bsh":                  `did you mean "bash"?`,
		"help chek":                       `unknown command "chek" for "nftproxy": did you mean "check"?`,
		"help get servces":                `unknown command "servces" for "nftproxy get": did you mean "services"?`,
		"help run x":                      `unknown command "x" for "nftproxy run"`,
		"top --colour":                    "unknown flag: --colour",
	} {
		var stderr bytes.Buffer
		code := execute(t.Context(), strings.Fields(line), &bytes.Buffer{}, &stderr)
		got := strings.TrimSpace(stderr.String())
		if code != 2 || !strings.HasSuffix(got, want) {
			t.Errorf("%s: exit status %d: %q, want %q", line, code, got, want)
		}
	}
}
