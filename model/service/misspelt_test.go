package service_test

import (
	"strings"
	"testing"

	"nftproxy/model/service"
)

// TestMeantOption: what was meant by an annotation whose prefix or key is mistyped.
func TestMeantOption(t *testing.T) {
	for annotation, want := range map[string]string{
		"nftproxy/balance": "nftproxy.io/balance", "nftproxy.com/eject": "nftproxy.io/eject",
		"nftprox.io/balance":  "nftproxy.io/balance",
		"Nftproxy.io/balance": "nftproxy.io/balance", "nftproxi.io/balence": "nftproxy.io/balance",
		"nft-proxy.io/eject":  "nftproxy.io/eject",
		"nftproxy.io/balance": "", "nftproxy.io/balence": "", "nftproxy/colour": "", "nftables.io/balance": "",
		"example.com/balance": "", "nftproxy": "",
	} {
		if got := service.MeantOption(annotation); got != want {
			t.Errorf("%s: got %q, want %q", annotation, got, want)
		}
	}
	for key, want := range map[string]string{"balence": "did you mean nftproxy.io/balance? ",
		"Balance": "did you mean nftproxy.io/balance? ", "colour": ""} {
		err := new(service.Options).Set(key, "client")
		if err == nil || !strings.HasPrefix(err.Error(), "unknown key; "+want+"there are ") {
			t.Errorf("%s: %v", key, err)
		}
	}
}
