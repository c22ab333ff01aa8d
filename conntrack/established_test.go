package conntrack

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/testnet"
)

// rules are nftproxy's own rules in a namespace.
type rules struct {
	conn     *kernel.Conn
	compiler *ruleset.Compiler
	state    nft.State
}

func newRules(t testing.TB, ns *testnet.Namespace) *rules {
	t.Helper()
	r := &rules{compiler: ruleset.NewCompiler(ruleset.Config{Table: ruleset.DefaultTable})}
	err := ns.Do(func() (err error) {
		r.conn, err = kernel.Open(kernelmodel.Config(t, kernel.Config{}))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.conn.Close() })
	return r
}

// sync writes the snapshot's program to the kernel.
func (r *rules) sync(t testing.TB, s service.Snapshot) {
	t.Helper()
	batch, next := r.state.Plan(r.compiler.Compile(s), time.Now())
	if batch.Empty() {
		t.Fatal("nothing to sync")
	}
	if err := r.conn.Apply(batch); err != nil {
		t.Fatal(err)
	}
	r.state = next
}

// A client is connected to a pod that vanishes. If its established connection is left
// alone, it gets no answer. If the entry is removed, its next packet is answered by a
// reset, from another endpoint or from the rules.
func TestEstablishedConnection(t *testing.T) {
	if testing.Short() {
		t.Skip("each case waits for a second")
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		for _, test := range []struct {
			name        string
			established []service.Protocol
			another     bool // endpoint is left
			reset       bool
		}{
			{"left alone", nil, true, false},
			{"removed", []service.Protocol{service.TCP}, true, true},
			{"removed, no endpoint left", []service.Protocol{service.TCP}, false, true},
			{"left alone, no endpoint left", nil, false, false},
		} {
			t.Run(family+" "+test.name, func(t *testing.T) {
				w := worlds(t)[family]
				vanishing, staying := w.endpoint(t, "vanishing"), w.endpoint(t, "staying")
				r, table := newRules(t, w.Node), open(t, w.Node)
				r.sync(t, w.web(t, vanishing))
				client := w.connect(t, "vanishing")

				var left []netip.AddrPort
				if test.another {
					left = append(left, staying)
				}
				// The link goes first: like a node without power, the pod does not
				// close its connections.
				end := testnet.End{NS: w.Node, Link: w.Pod("vanishing").HostInterface}
				if err := end.Remove(); err != nil {
					t.Fatal(err)
				}
				after := w.web(t, left...)
				r.sync(t, after)
				index, whole := NewIndex(Options{Established: test.established}), newPass(Scope{Everything: true})
				index.Update(w.web(t, vanishing))
				index.Update(after)
				if err := NewCleaner(table, index, nil).clean(t.Context(), whole); err != nil {
					t.Fatal(err)
				}
				if want := map[bool]int{true: 1}[test.reset]; whole.run.Removed[EndpointGone] != want {
					t.Errorf("removed %v, want %d of them because the endpoint is gone", whole.run.Removed, want)
				}

				// A reset comes at once. Only a wait shows that none comes.
				patience := map[bool]time.Duration{true: 30 * time.Second, false: time.Second}[test.reset]
				if err := client.SetReadDeadline(time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
				// A late acknowledgement of the client's may already have been answered by a reset.
				_, err := client.Write([]byte("anybody there?\n"))
				if err == nil {
					_, err = client.Read(make([]byte, 1))
				}
				want := map[bool]error{true: syscall.ECONNRESET, false: os.ErrDeadlineExceeded}[test.reset]
				if !errors.Is(err, want) {
					t.Errorf("the client gets %v, want %v", err, want)
				}
			})
		}
	}
}

// endpoint is a pod that serves TCP.
func (w *world) endpoint(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	pod, err := w.AddPod(name)
	if err != nil {
		t.Fatal(err)
	}
	addr := pod.Addrs.V4()
	if w.podAddr.Is6() {
		addr = pod.Addrs.V6()
	}
	at := netip.AddrPortFrom(addr, 8080)
	server, err := pod.NS.Serve(testnet.TCP, at, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return at
}

// web returns a snapshot of a Service with the endpoints.
func (w *world) web(t *testing.T, endpoints ...netip.AddrPort) service.Snapshot {
	t.Helper()
	text := fmt.Sprintf("node node\nservice default/web created 2026-01-01T00:00:00Z\n  cluster-ip %v\n  port http tcp 80\n", w.clusterIP)
	for _, e := range endpoints {
		text += fmt.Sprintf("    endpoint %v node ready serving\n", e)
	}
	return parse(t, text)
}

// connect connects the client to the Service and reads one answer.
func (w *world) connect(t *testing.T, want string) net.Conn {
	t.Helper()
	conn, err := w.pod.NS.Dial(t.Context(), "tcp", netip.AddrPortFrom(w.clusterIP, 80).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("who is it?\n")); err != nil {
		t.Fatal(err)
	}
	answer := bufio.NewReader(conn)
	for _, wanted := range []string{want + " ", "who is it?\n"} {
		if line, err := answer.ReadString('\n'); err != nil || !strings.HasPrefix(line, wanted) {
			t.Fatalf("answer %q, %v, want %q", line, err, wanted)
		}
	}
	return conn
}
