package kubeproxyconfig_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/tools/txtar"

	"nftproxy/daemon/kubeproxyconfig"
	"nftproxy/test/check"
)

// FuzzParse: a file is read in bounded memory, and gives the same settings each time. An
// error has words, and settings have a field and a flag.
func FuzzParse(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(archive.Files[0].Data)
	}
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	f.Add([]byte(head + "mode: userspace\nbindAddress: node1\nconfigSyncPeriod: -1s\nnodePortAddresses: [primary, " +
		"\"\"]\nclusterCIDR: 1\nclusterCIDR: 2\n"))
	f.Add([]byte(head + "conntrack: {min: 1, tcpCloseWaitTimeout: 1h}\nfeatureGates: {AllowServiceExternalIPs: " +
		"false}\nlogging: {vmodule: [{filePattern: x}]}\n"))
	f.Add([]byte("a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: [*b, *b, *b, *b]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		check.Bounded(t, 64<<20+4096*uint64(len(data)), func() {
			file, err := kubeproxyconfig.Parse(data)
			if err != nil && err.Error() == "" {
				t.Error("an error without words")
			}
			if file == nil {
				return
			}
			settings := fmt.Sprint(file.Settings())
			for _, s := range file.Settings() {
				if s.Field == "" || s.Flag == "" || s.Value == "" {
					t.Errorf("setting %+v", s)
				}
			}
			again, _ := kubeproxyconfig.Parse(data)
			if got := fmt.Sprint(again.Settings()); got != settings {
				t.Errorf("settings %s, and then %s", settings, got)
			}
		})
	})
}
