package preflight

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	apiversion "k8s.io/apimachinery/pkg/version"

	"nftproxy/watch"
)

// TestServerRange: what check says of API servers.
func TestServerRange(t *testing.T) {
	for minor, want := range map[string]struct {
		level Level
		words []string
	}{
		"28":   {Yellow, []string{"1.29 to 1.37"}},
		"29":   {Green, []string{"headless", "ServiceCIDRs"}},
		"30+":  {Green, []string{"headless", "ServiceCIDRs"}},
		"31":   {Green, []string{"ServiceCIDRs"}},
		"33":   {Green, nil},
		"38":   {Green, nil},
		"none": {Yellow, []string{"1.29 to 1.37"}},
	} {
		f := findingOf(apiversion.Info{Major: "1", Minor: minor, GitVersion: "v1." + minor + ".4"})
		if f.Level != want.level || (f.Do == "") != (f.Level == Green) || !strings.Contains(f.Found, "v1."+minor+".4") {
			t.Errorf("1.%s: %+v", minor, f)
		}
		for _, word := range want.words {
			if !strings.Contains(f.Found, word) {
				t.Errorf("1.%s: %q does not say %q", minor, f.Found, word)
			}
		}
		if len(want.words) == 0 && f.Found != "v1."+minor+".4" {
			t.Errorf("1.%s: %q", minor, f.Found)
		}
	}
}

// TestServerOutside: an API server that is too old, one that is away, and none.
func TestServerOutside(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(apiversion.Info{Major: "1", Minor: "27", GitVersion: "v1.27.9"})
	}))
	defer server.Close()
	from := watch.Source{Master: server.URL}
	if f := Server(t.Context(), from); f.Level != Yellow || !strings.Contains(f.Found, "v1.27.9") {
		t.Errorf("check says %+v", f)
	}
	server.Close()
	if f := Server(t.Context(), from); f.Level != Red {
		t.Errorf("check of an API server that is away says %+v", f)
	}
	if f := Server(t.Context(), watch.Source{Kubeconfig: os.DevNull}); f.Level != Red {
		t.Errorf("check of no kubeconfig says %+v", f)
	}
}
