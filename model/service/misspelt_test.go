package service_test

import (
	"slices"
	"strings"
	"testing"

	"nftproxy/model/service"
)

// fits says whether a key of MisspeltKeys stands for an annotation.
func fits(annotation, key string) bool {
	if end, open := strings.CutPrefix(key, "*"); open {
		return strings.HasSuffix(annotation, end)
	}
	start, open := strings.CutSuffix(key, "*")
	return open && strings.HasPrefix(annotation, start)
}

// TestMeantOption: what was meant by an annotation whose prefix or key is mistyped.
func TestMeantOption(t *testing.T) {
	for annotation, want := range map[string]string{
		"nftproxy/balance": "nftproxy.io/balance", "nftproxy.com/eject": "nftproxy.io/eject",
		"nftprox.io/balance":  "nftproxy.io/balance",
		"Nftproxy.io/balance": "nftproxy.io/balance", "nftproxi.io/balence": "nftproxy.io/balance",
		"nft-proxy.io/eject":  "nftproxy.io/eject",
		"nftproxy.io/balance": "", "nftproxy.io/balence": "", "nftproxy/colour": "", "nftables.io/balance": "",
		"example.com/balance": "", "nftproxy": "",
		"ntfproxy.io/balance": "nftproxy.io/balance", "ftproxy.io/balance": "nftproxy.io/balance",
		"nnftproxy.io/eject": "nftproxy.io/eject", "service.nftproxy.io/eject": "nftproxy.io/eject",
		"io.nftproxy/eject": "nftproxy.io/eject", "nftproxy-balance": "nftproxy.io/balance",
		"nftproxy.io.balance": "nftproxy.io/balance", "nftproxy_slow-strat": "nftproxy.io/slow-start",
		"service.kubernetes.io/udp-conection-handling": service.UDPHandlingAnnotation,
		"service.kubernets.io/udp-connection-handling": service.UDPHandlingAnnotation,
		"services.k8s.io/udp-connection-handling":      service.UDPHandlingAnnotation,
		"service.kubernetes.io/topology-mode":          "", service.UDPHandlingAnnotation: "",
		"nginx.ingress.kubernetes.io/balance": "", "metallb.io/balance": "",
		"service.cilium.io/lb-algoritm": "", "service.cilium.io/src-range-policy": "", service.SourcesPolicyAnnotation: "",
		"lb.projectcalico.org/no-endpoint-action": "", "nftproxy.io/src-ranges-policy": "",
	} {
		if got := service.MeantOption(annotation); got != want {
			t.Errorf("%s: got %q, want %q", annotation, got, want)
		}
		seen := slices.ContainsFunc(service.MisspeltKeys(), func(key string) bool { return fits(annotation, key) })
		if want != "" && !seen {
			t.Errorf("%s is none of the keys that have to be seen", annotation)
		}
	}
	for key, want := range map[string]string{"balence": "did you mean nftproxy.io/balance? ",
		"Balance": "did you mean nftproxy.io/balance? ", "colour": "",
		"udp-conection-handling": "did you mean " + service.UDPHandlingAnnotation + "? "} {
		err := new(service.Options).Set(key, "client")
		if err == nil || !strings.HasPrefix(err.Error(), "unknown key; "+want+"there are ") {
			t.Errorf("%s: %v", key, err)
		}
	}
}
