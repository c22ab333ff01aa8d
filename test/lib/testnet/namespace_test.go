package testnet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"nftproxy/test/lib/testnet"
)

// identity returns the kernel's name of the namespace that the file names, as
// in "net:[4026531840]".
func identity(t *testing.T, path string) string {
	t.Helper()
	name, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func TestDo(t *testing.T) {
	a, b := testnet.NamespaceForTest(t, "a"), testnet.NamespaceForTest(t, "b")
	home := identity(t, "/proc/thread-self/ns/net")
	here := func() string { return identity(t, "/proc/thread-self/ns/net") }

	failure := errors.New("failure")
	err := a.Do(func() error {
		if got, want := here(), identity(t, a.Path()); got != want {
			t.Errorf("in a: %s, want %s", got, want)
		}
		if err := b.Do(func() error {
			if got, want := here(), identity(t, b.Path()); got != want {
				t.Errorf("in b: %s, want %s", got, want)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if got, want := here(), identity(t, a.Path()); got != want {
			t.Errorf("back in a: %s, want %s", got, want)
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Errorf("Do returned %v", err)
	}
	if got := testnet.ThreadNamespaces(t); !slices.Equal(got, []string{home}) {
		t.Errorf("threads are left in %v, want all in %s", got, home)
	}
}

func TestDoEndsWithItsFunction(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "ns")
	ended := make(chan bool)
	go func() {
		returned := false
		defer func() { ended <- !returned }()
		_ = ns.Do(func() error { runtime.Goexit(); return nil })
		returned = true
	}()
	if !<-ended {
		t.Error("Do returned although its function ended the goroutine")
	}
	if got := testnet.ThreadNamespaces(t); len(got) != 1 {
		t.Errorf("threads are left in %v", got)
	}
}

func TestProcessesRunInside(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "ns")
	var out bytes.Buffer
	cmd := exec.Command("readlink", "/proc/self/ns/net")
	cmd.Stdout = &out
	if err := ns.Run(cmd); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.TrimSpace(out.String()), identity(t, ns.Path()); got != want {
		t.Errorf("the process ran in %s, want %s", got, want)
	}
}

func TestSysctlIsOfTheNamespace(t *testing.T) {
	a, b := testnet.NamespaceForTest(t, "a"), testnet.NamespaceForTest(t, "b")
	for _, key := range []string{"net.ipv4.ip_forward", "net/ipv6/conf/all/forwarding"} {
		for ns, value := range map[*testnet.Namespace]string{a: "1", b: "0"} {
			if err := ns.Sysctl(key, value); err != nil {
				t.Fatal(err)
			}
		}
		for ns, want := range map[*testnet.Namespace]string{a: "1", b: "0"} {
			if got, err := ns.ReadSysctl(key); err != nil || got != want {
				t.Errorf("%s in %s is %q, %v, want %q", key, ns, got, err, want)
			}
		}
	}
	if err := a.Sysctl("net.no.such", "1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an unknown sysctl gave %v", err)
	}
}

func TestSocketsAreInside(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "ns")
	l, err := ns.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello") // the client checks
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-served
	}()

	client := http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
	response, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil || string(body) != "hello" {
		t.Errorf("got %q, %v", body, err)
	}

	elsewhere := testnet.NamespaceForTest(t, "elsewhere")
	at := netip.MustParseAddrPort(l.Addr().String())
	if got, err := elsewhere.Ask(context.Background(), testnet.TCP, at, enough); err != nil ||
		got.Outcome != testnet.Refused {
		t.Errorf("from another namespace: %v, %v; want refused", got, err)
	}
	if _, err := ns.Dial(context.Background(), "tcp", "localhost:80"); err == nil {
		t.Error("a host name was resolved")
	}
}

func TestClosedNamespace(t *testing.T) {
	testnet.SkipUnwanted(t)
	ns, err := testnet.New("ns")
	if errors.Is(err, os.ErrPermission) {
		testnet.NamespaceForTest(t, "ns") // skips or fails, as it should
	}
	if err != nil {
		t.Fatal(err)
	}
	server, err := ns.Serve(testnet.TCP, netip.MustParseAddrPort("127.0.0.1:0"), "server")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := ns.Do(func() error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Do after Close: %v, want %v", err, os.ErrClosed)
	}
	if _, err := ns.Serve(testnet.TCP, netip.MustParseAddrPort("127.0.0.1:0"), "server"); err == nil {
		t.Error("a closed namespace serves")
	}
}
