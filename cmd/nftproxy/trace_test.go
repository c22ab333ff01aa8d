package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// traced is a trace under way on the node.
type traced struct {
	*flows
	cmd  *exec.Cmd
	out  bytes.Buffer
	errs *bufio.Scanner
	log  strings.Builder
}

// trace starts nftproxy trace and waits until packets are marked.
func (f *flows) trace(args ...string) *traced {
	f.Helper()
	r := &traced{flows: f, cmd: exec.CommandContext(f.Context(), "nftproxy", append([]string{"trace"}, args...)...)}
	r.cmd.Stdout = &r.out
	stderr, err := r.cmd.StderrPipe()
	if err != nil {
		f.Fatal(err)
	}
	r.errs = bufio.NewScanner(stderr)
	if err := f.Node.Start(r.cmd); err != nil {
		f.Fatal(err)
	}
	for r.errs.Scan() {
		r.log.WriteString(r.errs.Text() + "\n")
		if strings.Contains(r.errs.Text(), "waiting for new connections") {
			return r
		}
	}
	f.Fatalf("nftproxy trace %q ended: %v, %s", args, r.cmd.Wait(), r.log.String())
	return nil
}

// end waits for the end of the trace, and returns its output and exit code.
func (r *traced) end() (stdout, stderr string, code int) {
	r.Helper()
	for r.errs.Scan() {
		r.log.WriteString(r.errs.Text() + "\n")
	}
	exit := (*exec.ExitError)(nil)
	if err := r.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		r.Fatal(err)
	}
	return r.out.String(), r.log.String(), r.cmd.ProcessState.ExitCode()
}

// normalised replaces what differs from one run to the next.
func (f *flows) normalised(s string) string {
	s = strings.NewReplacer(
		f.client.Addrs.V6().String(), "CLIENT6", f.client.Addrs.V4().String(), "CLIENT", f.OutsideAddrs.V4().String(),
		"OUTSIDE",
		f.NodeAddrs.V4().String(), "NODE", f.NodeAddrs.V6().String(), "NODE6", f.one.Addrs.V6().String(), "ONE6",
		f.one.Addrs.V4().String(), "ONE",
		f.client.HostInterface, "veth-client", f.one.HostInterface, "veth-one",
	).Replace(s)
	s = regexp.MustCompile(`entry: [a-z0-9-]+, `).ReplaceAllString(s, "entry: STATE, ")
	s = regexp.MustCompile(`expires in [0-9a-z]+`).ReplaceAllString(s, "expires in TIME")
	s = regexp.MustCompile(`masqueraded as NODE:[0-9]+`).ReplaceAllString(s, "masqueraded as NODE:PORT")
	return regexp.MustCompile(` +\n`).ReplaceAllString(s, "\n")
}

// TestTrace: real packets through the rules, as they stand in testdata/trace.
func TestTrace(t *testing.T) {
	f := newFlows(t)
	f.rules(f.services(f.one, f.two))
	// Another program has a say, too.
	if err := netfilter.NFTForTest(t).Load(f.Node, `table inet firewall {
	chain forward { type filter hook forward priority 0; ct state new jump new; }
	chain new { tcp dport 8080 accept; }
}`); err != nil {
		t.Fatal(err)
	}
	client4, client6 := f.client.Addrs.V4().String(), "["+f.client.Addrs.V6().String()+"]"
	ask := func(t *testing.T, from *testnet.Namespace, proto, src, dst string, want testnet.Outcome) {
		t.Helper()
		a, err := from.AskFrom(t.Context(), proto, netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst), time.Minute)
		if err != nil || a.Outcome != want {
			t.Fatalf("ask %s: %+v, %v", dst, a, err)
		}
	}
	for name, c := range map[string]struct {
		flow string
		send func(*testing.T)
	}{
		"tcp": {client4 + " -> 10.96.0.10:80", func(t *testing.T) {
			ask(t, f.client.NS, testnet.TCP, client4+":4010", "10.96.0.10:80", testnet.Answered)
		}},
		"udp-ipv6": {"[fd00:96::a]:53/udp", func(t *testing.T) {
			ask(t, f.client.NS, testnet.UDP, client6+":4010", "[fd00:96::a]:53", testnet.Answered)
		}},
		"node-port": {f.NodeAddrs.V4().String() + ":30053/udp", func(t *testing.T) {
			ask(t, f.Outside, testnet.UDP, f.OutsideAddrs.V4().String()+":4010", f.NodeAddrs.V4().String()+":30053",
				testnet.Answered)
		}},
		"from-node": {"10.96.0.10:53/udp", func(t *testing.T) {
			ask(t, f.Node, testnet.UDP, f.NodeAddrs.V4().String()+":4010", "10.96.0.10:53", testnet.Answered)
		}},
		"refused": {"10.96.0.10:81/tcp", func(t *testing.T) {
			ask(t, f.client.NS, testnet.TCP, client4+":4020", "10.96.0.10:81", testnet.Refused)
		}},
		"dropped": {"10.96.0.99:53/udp", func(*testing.T) { f.unanswered(client4+":4010", "10.96.0.99:53") }},
	} {
		t.Run(name, func(t *testing.T) {
			r := f.trace("--packets", "1", "--timeout", "2m", c.flow)
			c.send(t)
			out, errs, code := r.end()
			if code != 0 {
				t.Fatalf("exit code %d, said %s", code, errs)
			}
			got := f.normalised(out)
			if *update {
				if err := os.WriteFile("testdata/trace/"+name+".txt", []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile("testdata/trace/" + name + ".txt")
			if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-want +got:\n%s\nall of it:\n%s\n%s", diff, got, errs)
			}
			f.traceless()
		})
	}
}

// traceless checks that no trace has left a table.
func (f *flows) traceless() {
	f.Helper()
	list, err := netfilter.NFTForTest(f).Run(f.Node, "", "list", "tables")
	if err != nil {
		f.Fatal(err)
	}
	if strings.Contains(list, "nftproxy-trace") {
		f.Errorf("a trace has left a table:\n%s", list)
	}
}

// TestTraceJSON: programs get an object for each packet, with the names that the help promises,
// and no more than they asked for.
func TestTraceJSON(t *testing.T) {
	f := newFlows(t)
	f.rules(f.services(f.one, f.two))
	r := f.trace("-o", "json", "--packets", "3", "--timeout", "2m", "--from", f.client.Addrs.V4().String(),
		"10.96.0.10:53/udp")
	for port := range 5 {
		f.ask(f.client.NS, fmt.Sprintf("%s:%d", f.client.Addrs.V4(), 4010+port), "10.96.0.10:53")
		f.ask(f.client.NS, fmt.Sprintf("%s:%d", f.client.Addrs.V4(), 4010+port), "10.96.0.10:53") // no first packet
	}
	out, errs, code := r.end()
	if code != 0 {
		t.Fatalf("exit code %d, said %s", code, errs)
	}
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	for number := 1; ; number++ {
		var p struct {
			Packet                          int
			Time                            time.Time
			Protocol, Source, Destination   string
			InputInterface, OutputInterface string
			Service, Port, Endpoint, Fate   string
			OmittedSteps                    int
			Incomplete                      bool
			Steps                           []struct {
				Hook, Family, Table, Chain, Rule, By, Verdict string
				Handle                                        uint64
				Mark                                          uint32
			}
			Entry *struct {
				State, ReplySource, ReplyDestination, Stale string
				Masqueraded                                 bool
				ExpiresSeconds                              int
			}
		}
		err := d.Decode(&p)
		if err == io.EOF && number == 4 {
			break
		}
		if err != nil {
			t.Fatalf("object %d: %v:\n%s", number, err, out)
		}
		source := netip.AddrPortFrom(f.client.Addrs.V4(), uint16(4009+number)).String()
		if p.Packet != number || p.Source != source || p.Destination != "10.96.0.10:53" || p.Service != "shop/cart" ||
			p.Port != "dns" ||
			p.Endpoint != at(f.one.Addrs.V4()).String() || p.Fate != "passed" || p.InputInterface != f.client.HostInterface ||
			p.OutputInterface != f.one.HostInterface {
			t.Errorf("packet %d: %+v", number, p)
		}
		if p.Entry == nil || p.Entry.ReplySource != p.Endpoint || p.Entry.ExpiresSeconds <= 0 || p.Entry.Stale != "" ||
			len(p.Steps) < 3 {
			t.Errorf("packet %d: %+v, %d steps", number, p.Entry, len(p.Steps))
		}
	}
	f.traceless()
}

// TestTraceOfNothing: where no packet comes, trace says so, names connections that the rules
// will not see again, and ends with 1. A signal ends it at once.
func TestTraceOfNothing(t *testing.T) {
	f := newFlows(t)
	f.rules(f.services(f.one, f.two))
	f.ask(f.client.NS, f.client.Addrs.V4().String()+":4010", "10.96.0.10:53")
	r := f.trace("--timeout", "1s", "10.96.0.10:53/udp")
	out, errs, code := r.end()
	says := f.normalised(errs)
	for _, want := range []string{
		"no new connection came\n", "whose packets meet the rules no more:\n  CLIENT:4010 -> 10.96.0.10:53: replied, " +
			"answered by ONE:8080, expires in TIME\n",
	} {
		if code != int(statusNoPacket) || out != "" || !strings.Contains(says, want) {
			t.Errorf("exit code %d, %q is not in %s%s", code, want, out, says)
		}
	}
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		r := f.trace("--timeout", "10m", "10.96.0.10:53/udp")
		if err := r.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		r.end()
		f.traceless()
	}
}

// TestTraceWithoutTables: without nftproxy's tables the rules of others are shown all the same.
func TestTraceWithoutTables(t *testing.T) {
	f := newFlows(t)
	r := f.trace("--packets", "1", "--timeout", "10m", f.one.Addrs.V4().String()+":8080/udp")
	f.ask(f.client.NS, f.client.Addrs.V4().String()+":4010", f.one.Addrs.V4().String()+":8080")
	out, errs, code := r.end()
	got := f.normalised(out)
	if want := "packet 1: udp CLIENT:4010 -> ONE:8080, in by veth-client\n  passed\n  entry: STATE, answered by " +
		"ONE:8080, expires in TIME\n"; code != 0 || got != want || !strings.Contains(errs, "there is no table nftproxy") {
		t.Errorf("exit code %d, said\n%s%s", code, got, errs)
	}
}

// TestTraceUsage: a wrong command line ends with 2 and names the mistake.
func TestTraceUsage(t *testing.T) {
	for _, c := range [][2]string{
		{"10.96.0.10", "want [SOURCE[:PORT] ->] DESTINATION:PORT"},
		{"--packets 0 10.96.0.10:80", "--packets: 0: want 1 to 1000"},
		{"--packets 1001 10.96.0.10:80", "--packets: 1001: want 1 to 1000"},
		{"--timeout 2h 10.96.0.10:80", "--timeout: 2h0m0s: want 1s to 1h"},
		{"-o name 10.96.0.10:80", "want text, wide, json or yaml"},
		{"we_b:80", "is no name of a Service"},
		{"10.96.0.300:80", "want [SOURCE[:PORT] ->] DESTINATION:PORT"},
		{"--from fd00::7 10.96.0.10:80", "different families"},
	} {
		var out, errs bytes.Buffer
		if code := execute(t.Context(), append([]string{"trace"}, strings.Fields(c[0])...), &out, &errs); code != 2 ||
			!strings.Contains(errs.String(), c[1]) {
			t.Errorf("trace %s: exit code %d, said %s", c[0], code, errs.String())
		}
	}
}

// TestTraceBesideFlood: while another program traces busy traffic, trace shows its packet and
// ends. A signal ends it, too.
func TestTraceBesideFlood(t *testing.T) {
	f := newFlows(t)
	f.rules(f.services(f.one, f.two))
	if err := netfilter.NFTForTest(t).Load(f.Node, `table inet noise {
	chain jumps { }
	chain out { type filter hook output priority -300; udp dport 9 meta nftrace set 1; jump jumps; jump jumps; jump jumps; jump jumps; jump jumps; jump jumps; }
}`); err != nil {
		t.Fatal(err)
	}
	noise, err := f.Node.DialFrom(t.Context(), "udp", "127.0.0.1:4009", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				_, _ = noise.Write([]byte("x")) // nothing listens there
			}
		}
	})
	defer func() {
		close(over)
		flood.Wait()
		_ = noise.Close() // It has no data to lose.
	}()
	r := f.trace("--packets", "1", "--timeout", "10m", "10.96.0.10:53/udp")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for r.errs.Scan() {
			r.log.WriteString(r.errs.Text() + "\n")
		}
	}()
	// The kernel may lose the events of a packet, so more of them follow.
	for port := 4010; ; port++ {
		select {
		case <-ended:
		case <-time.After(100 * time.Millisecond):
			f.ask(f.client.NS, fmt.Sprintf("%s:%d", f.client.Addrs.V4(), port), "10.96.0.10:53")
			continue
		}
		break
	}
	out, errs, code := r.end()
	if code != 0 || !strings.Contains(out, "-> 10.96.0.10:53, in by "+f.client.HostInterface) {
		t.Errorf("exit code %d, said %s%s", code, out, errs)
	}
	interrupted := f.trace("--timeout", "10m", "10.96.0.10:54/udp")
	if err := interrupted.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := interrupted.end(); code != int(statusNoPacket) {
		t.Errorf("after a signal: exit code %d, said %s", code, errs)
	}
	f.traceless()
}
