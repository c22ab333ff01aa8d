package wire

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKeep: a key of keep stands for itself, one that ends in a slash or a star for all that begin so, and one
// that begins with a star for all that end so. A star stands for nothing else: it is no part of a key.
func TestKeep(t *testing.T) {
	keep := []string{"whole", "prefix/", "nft*", "*/end"}
	all := map[string]string{
		"whole": "1", "whole/more": "2", "prefix/": "3", "prefix/a": "4", "prefix": "5", "prefixes/a": "6",
		"nft": "7", "nftproxy/a": "8", "nftproxy.com/a": "9", "nf": "10", "Nft": "11", "xnft": "12", "nft*": "13",
		"whol": "14", "": "15", "a.b/end": "16", "/end": "17", "a/ends": "18", "aend": "19",
	}
	want := map[string]string{"whole": "1", "prefix/": "3", "prefix/a": "4", "nft": "7", "nftproxy/a": "8",
		"nftproxy.com/a": "9", "nft*": "13", "a.b/end": "16", "/end": "17"}
	written := metav1.ObjectMeta{Annotations: all, Labels: all}
	message, err := written.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var read metav1.ObjectMeta
	if err := metadata(message, keep, &read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(metav1.ObjectMeta{Annotations: want, Labels: want}, read); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
