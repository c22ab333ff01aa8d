package proxies

import (
	"testing"
	"time"

	"nftproxy/bench/result"
	"nftproxy/test/lib/child"
)

// TestSyncBegan: kube-proxy logs how long a sync took when it ends.
func TestSyncBegan(t *testing.T) {
	end := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const text = `I0102 03:04:05.000000   1 proxier.go:649] "SyncProxyRules complete" ipFamily="IPv4" elapsed="1.5s"`
	if got, want := SyncBegan(child.Line{Text: text, At: end}), end.Add(-1500*time.Millisecond); !got.Equal(want) {
		t.Errorf("it began at %v, want %v", got, want)
	}
	if got := SyncBegan(child.Line{Text: "another line", At: end}); !got.IsZero() {
		t.Errorf("another line: %v", got)
	}
}

// TestOnly: the names of proxies are those of the results.
func TestOnly(t *testing.T) {
	for _, name := range append(result.KubeProxies(), result.NFTProxy) {
		if err := (Setup{Only: []string{name}}).Validate(); err != nil {
			t.Error(err)
		}
	}
	s := Setup{Only: []string{"kube-proxy"}}
	if s.Validate() == nil {
		t.Error("an unknown name is no error")
	}
	if s.Wants(result.NFTProxy) || !(Setup{}).Wants(result.NFTProxy) {
		t.Error("wanted are not those that are named, or all")
	}
}
