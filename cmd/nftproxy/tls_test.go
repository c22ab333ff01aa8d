package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nftproxy/daemon/health"
	"nftproxy/test/lib/testnet"
)

// pair is a certificate for 127.0.0.1 that is signed by its own key.
type pair struct {
	certificate, key []byte
	parsed           *x509.Certificate
}

func newPair(t *testing.T, serial int64, end time.Time) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "node-1"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-48 * time.Hour), NotAfter: end, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return pair{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), parsed,
	}
}

// secret is a folder with tls.crt and tls.key as the kubelet mounts a Secret: publish swaps both at once.
func secret(t *testing.T) (files health.Files, publish func(certificate, key []byte)) {
	t.Helper()
	dir, version := t.TempDir(), 0
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	files = health.Files{Certificate: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	must(os.Symlink("..data/tls.crt", files.Certificate))
	must(os.Symlink("..data/tls.key", files.Key))
	return files, func(certificate, key []byte) {
		t.Helper()
		version++
		name := "..version_" + string(rune('0'+version))
		must(os.Mkdir(filepath.Join(dir, name), 0o755))
		must(os.WriteFile(filepath.Join(dir, name, "tls.crt"), certificate, 0o644))
		must(os.WriteFile(filepath.Join(dir, name, "tls.key"), key, 0o600))
		must(os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
}

// getTLS asks a server over TLS, with trust in one certificate only.
func getTLS(ns *testnet.Namespace, url string, trust *x509.Certificate) (serial int64, code int, err error) {
	roots := x509.NewCertPool()
	roots.AddCert(trust)
	client := &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: roots}}}
	response, err := client.Get(url)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, 0, err
	}
	return response.TLS.PeerCertificates[0].SerialNumber.Int64(), response.StatusCode, nil
}

// TestTLS: a server that has TLS does not listen before its files come, and never without TLS. A renewed pair counts at
// once. Files that cannot be used leave the pair from before in force, which is logged once for each.
func TestTLS(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "tls")
	later := time.Now().Add(time.Hour)
	first, second, other := newPair(t, 1, later), newPair(t, 2, later), newPair(t, 3, later)
	expired := newPair(t, 4, time.Now().Add(-time.Hour))
	files, publish := secret(t)
	r := start(t, ns, "--nftproxy-manifests", manifest(t, webManifest("", "10.244.7.1")),
		"--metrics-bind-address=127.0.0.1:10249", "--healthz-bind-address=127.0.0.1:10256",
		"--nftproxy-probe-bind-address=127.0.0.1:10266",
		"--nftproxy-metrics-tls-cert-file", files.Certificate, "--nftproxy-metrics-tls-private-key-file", files.Key,
		"--nftproxy-healthz-tls-cert-file", files.Certificate, "--nftproxy-healthz-tls-private-key-file", files.Key)
	// awaitTwice waits for a message of both servers.
	awaitTwice := func(is func(logged) bool) {
		t.Helper()
		n := 0
		r.await("a message of both servers", func(l logged) bool {
			if is(l) {
				n++
			}
			return n == 2
		})
	}
	message := func(m string) func(logged) bool { return func(l logged) bool { return l.Msg == m } }
	const metrics, healthz = "https://127.0.0.1:10249/metrics", "https://127.0.0.1:10256/livez"
	serve := func(what string, want pair) {
		t.Helper()
		for _, url := range []string{metrics, healthz} {
			serial, code, err := getTLS(ns, url, want.parsed)
			if err != nil || code != http.StatusOK || serial != want.parsed.SerialNumber.Int64() {
				t.Errorf("%s: %s: certificate %d, status %d, %v; want %d, 200", what, url, serial, code, err,
					want.parsed.SerialNumber)
			}
		}
	}
	synced, without := false, 0
	r.await("a sync, and two servers without a certificate", func(l logged) bool {
		synced = synced || l.Msg == "synced"
		if l.Msg == "cannot serve, trying again" {
			without++
		}
		return synced && without == 2
	})
	if _, _, err := getTLS(ns, metrics, first.parsed); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a server without a certificate: %v, want connection refused", err)
	}
	publish(first.certificate, first.key)
	awaitTwice(func(l logged) bool {
		return l.Msg == "serving" && (l.Address == "127.0.0.1:10249" || l.Address == "127.0.0.1:10256")
	})
	serve("the first pair", first)
	plain := &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
	for url, want := range map[string]int{"http://127.0.0.1:10249/metrics": http.StatusBadRequest,
		"http://127.0.0.1:10266/livez": http.StatusOK} {
		response, err := plain.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: status %d, want %d", url, response.StatusCode, want)
		}
	}
	publish(second.certificate, other.key)
	awaitTwice(message("cannot use a renewed certificate; the one from before stays in force"))
	serve("a key of another certificate", first)
	publish([]byte("no PEM"), second.key)
	awaitTwice(message("cannot use a renewed certificate; the one from before stays in force"))
	serve("no PEM", first)
	publish(second.certificate, second.key)
	awaitTwice(message("the server has a certificate"))
	serve("the second pair", second)
	publish(expired.certificate, expired.key)
	awaitTwice(message("the certificate has expired; clients that check it refuse the server"))
	if _, _, err := getTLS(ns, metrics, expired.parsed); !errors.As(err, new(*tls.CertificateVerificationError)) {
		t.Errorf("an expired certificate: %v", err)
	}
	r.end()
	for text, want := range map[string]int{"cannot serve, trying again": 2, "cannot use a renewed certificate": 4,
		"the server has a certificate": 4} {
		if n := strings.Count(r.log.String(), text); n != want {
			t.Errorf("%q is %d times in the log, want %d:\n%s", text, n, want, r.log.String())
		}
	}
}

// TestTLSFlags: one file without the other is an error that names both flags or the field.
func TestTLSFlags(t *testing.T) {
	for _, c := range []struct{ flag, file, want string }{
		{"--nftproxy-metrics-tls-cert-file=/a", "", "--nftproxy-metrics-tls-private-key-file is empty"},
		{"--nftproxy-healthz-tls-private-key-file=/a", "", "--nftproxy-healthz-tls-cert-file is empty"},
		{"", "metricsServerTLS: {enable: true, certFile: /a}\n", `metricsServerTLS.keyFile: "": want a path`},
		{"", "healthzServerTLS: {enable: true}\n", `healthzServerTLS.certFile: "": want a path`},
	} {
		line := commandLine{"--hostname-override=node-1"}
		if c.flag != "" {
			line = append(line, c.flag)
		} else {
			line = append(line, "--config=config.conf")
		}
		if _, err := line.config([]byte(configHead + c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s%s: %v, want %s", c.flag, c.file, err, c.want)
		}
	}
	line := commandLine{"--hostname-override=node-1", "--config=config.conf"}
	c, err := line.config([]byte(configHead + "metricsServerTLS: {enable: true, certFile: /a, keyFile: " +
		"/b}\nhealthzServerTLS: {certFile: /a}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := (health.Files{Certificate: "/a", Key: "/b"}); c.MetricsTLS != want || c.HealthTLS != (health.Files{}) {
		t.Errorf("metrics %v, health %v; want %v and none", c.MetricsTLS, c.HealthTLS, want)
	}
	if notes := strings.Join(c.Notes, "\n"); !strings.Contains(notes, "healthzServerTLS.certFile has no effect: "+
		"healthzServerTLS.enable is not true") {
		t.Errorf("notes:\n%s", notes)
	}
}
