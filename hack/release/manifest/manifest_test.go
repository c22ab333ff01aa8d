package manifest_test

import (
	"strings"
	"testing"

	"nftproxy/hack/release/manifest"
)

// TestImage: a release names its image in each container, and changes nothing else.
func TestImage(t *testing.T) {
	for folder, containers := range map[string]int{"overlays/kubeadm": 1, "cleanup/nftproxy": 2, "cleanup/kube-proxy": 2} {
		before, err := manifest.Render("../../../deploy/"+folder, "")
		if err != nil {
			t.Fatal(err)
		}
		after, err := manifest.Render("../../../deploy/"+folder, "registry.example.org/team/nftproxy:v1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(before), "image: localhost/nftproxy:dev\n"); n != containers {
			t.Errorf("%s: %d containers have the image for development, want %d", folder, n, containers)
		}
		want := strings.ReplaceAll(string(before), "localhost/nftproxy:dev", "registry.example.org/team/nftproxy:v1.2.3")
		if string(after) != want {
			t.Errorf("%s with the image of a release is\n%s", folder, after)
		}
	}
	if _, err := manifest.Render("../../../deploy/overlays/kubeadm", "nftproxy"); err == nil {
		t.Error("an image without registry and tag is taken")
	}
	if _, err := manifest.Render("../../../deploy/no-such-folder", ""); err == nil || !strings.Contains(err.Error(),
		"no-such-folder") {
		t.Errorf("a folder that is not there: error %v", err)
	}
}
