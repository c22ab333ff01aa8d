package daemon

import (
	"testing"

	"nftproxy/watch"
)

// TestBeside: which settings leave kube-proxy and its rules alone.
func TestBeside(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		want   bool
	}{
		"the cluster's Services": {Config{}, false},
		"a named proxy":          {Config{Objects: watch.Options{ProxyName: "nftproxy"}}, true},
		"manifests":              {Config{Source: watch.Source{Manifests: "services.yaml"}}, true},
	} {
		if got := c.config.beside(); got != c.want {
			t.Errorf("%s: beside is %t, want %t", name, got, c.want)
		}
	}
}
