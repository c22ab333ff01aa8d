package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// readArchive returns the files of an archive by name.
func readArchive(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "nftproxy-sysdump/")] = string(text)
	}
}

// dumpable is a cluster with what an archive must not have.
func dumpable() *fakeCluster {
	f := shop()
	f.services[0].Annotations = map[string]string{"owner": "secret-owner", "nftproxy.io/balance": "client"}
	f.services[0].Labels = map[string]string{"team": "secret-team"}
	f.set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "nftproxy",
		Env: []corev1.EnvVar{{Name: "TOKEN", Value: "secret-env"}}}}
	f.run = func(node string, args []string) (string, int) {
		switch strings.Join(args, " ") {
		case "status -o json":
			return `{"node":"` + node + `","services":2}`, 1
		case "get services -o json":
			return `{"services":[{"namespace":"shop","name":"cart","clusterIPs":["10.96.0.20"],"x":"cart-a.shop.svc at ` +
				`10.244.1.5:8080 on node-1"}]}`, 0
		case "proxies":
			return "", 1
		}
		return "text of " + strings.Join(args, " "), 0
	}
	return f
}

// TestSysdump: the archive has a folder for each node, says what it lacks, and has nothing that could be secret.
func TestSysdump(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dump.tar.gz")
	stdout, stderr, code := dumpable().runPlugin(t, "sysdump", "-f", path)
	if code != 0 || !strings.Contains(stdout, "3 nodes; 3 files could not be had") {
		t.Fatalf("exit status %d: %s%s", code, stdout, stderr)
	}
	files := readArchive(t, path)
	for _, node := range []string{"node-1", "node-2", "node-3"} {
		for _, f := range nodeFiles() {
			if _, is := files["nodes/"+node+"/"+f.name]; is != (f.name != "proxies.txt") {
				t.Errorf("%s of %s: %t", f.name, node, is)
			}
		}
		if files["nodes/"+node+"/log.txt"] == "" {
			t.Errorf("no log of %s", node)
		}
	}
	if !strings.Contains(files["README.md"], "- nodes/node-1/proxies.txt: nftproxy: it failed\n") {
		t.Errorf("README.md does not say what is missing:\n%s", files["README.md"])
	}
	if !strings.Contains(files["cluster/services.json"], "nftproxy.io/balance") {
		t.Error("an annotation of nftproxy's is missing")
	}
	for name, text := range files {
		for _, secret := range []string{"secret-owner", "secret-env"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %s", name, secret)
			}
		}
	}
	_, stderr, code = dumpable().runPlugin(t, "sysdump", "-f", path)
	if code != 2 || !strings.Contains(stderr, "exists") {
		t.Errorf("over an archive: exit status %d: %s", code, stderr)
	}
}

// TestSysdumpRedacted: no name and no address of the cluster is left, each is the same word everywhere, and the archive
// is still JSON with the same fields.
func TestSysdumpRedacted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dump.tar.gz")
	if _, stderr, code := dumpable().runPlugin(t, "sysdump", "--redact", "-f", path); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr)
	}
	all := ""
	files := readArchive(t, path)
	for name, text := range files {
		all += name + "\n" + text + "\n"
	}
	for _, name := range []string{"10.96.0.20", "10.244.", "192.168.0.", "shop", "cart", "web-a", "secret-team"} {
		if strings.Contains(all, name) {
			t.Errorf("the archive has %s", name)
		}
	}
	services := files["cluster/services.json"]
	for _, field := range []string{`"clusterIP": "198.18.`, `"namespace": "namespace-`, `"name": "object-`} {
		if !strings.Contains(services, field) {
			t.Errorf("no %s in\n%s", field, services)
		}
	}
}

// TestRedactor: what is replaced, and what stays.
func TestRedactor(t *testing.T) {
	r := newRedactor("kube-system")
	for name, kind := range map[string]string{"shop": "namespace", "cart": "object", "tcp": "object",
		"kube-system": "namespace", "ip-10-0-0-1.ec2.internal": "node"} {
		r.name(name, kind)
	}
	for text, want := range map[string]string{
		"shop/cart:http":                  "namespace-1/object-1:http",
		"cart.shop.svc.cluster.local.":    "object-1.namespace-1.svc.cluster.local.",
		"shopping cartwheel":              "shopping cartwheel",
		"on ip-10-0-0-1.ec2.internal: no": "on node-1: no",
		"at 06:00:07, 3.5 s":              "at 06:00:07, 3.5 s",
		"127.0.0.1:10249 and [::1]:10249": "127.0.0.1:10249 and [::1]:10249",
		"kube-system":                     "kube-system",
	} {
		if got := r.text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"10.0.0.1:80, [fd00::1]:80":          "198.18.0.1:80, [2001:db8::1]:80",
		"FD00::1 fd00:0::1 ::ffff:10.0.0.1:": "2001:db8::1 2001:db8::1 198.18.0.1:",
		"10.0.0.1-10.0.0.1, fd00::1/128":     "198.18.0.1-198.18.0.1, 2001:db8::1/128",
	} {
		r.addresses, r.met["ipv4"], r.met["ipv6"] = map[netip.Addr]netip.Addr{}, 0, 0
		if got := r.text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := r.text("2a01:4f8:1:2::/64"); strings.Contains(got, "2a01") {
		t.Errorf("a prefix stays: %q", got)
	}
	text, err := r.file("x.json", []byte(`{"protocol":"tcp","cart":"cart","labels":{"a":"b"}}`))
	if want := "{\n  \"cart\": \"object-1\",\n  \"protocol\": \"tcp\"\n}"; err != nil || string(text) != want {
		t.Errorf("%s (%v), want %s", text, err, want)
	}
	if text, err := r.file("x.json", []byte(`{"cart":`)); err == nil {
		t.Errorf("what is no JSON became %s", text)
	}
}
