package endurance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/testnet"
)

const (
	// changesVariable is how many changes TestEndurance makes, outVariable the file without extension for its
	// figures and the picture of them, and seedVariable the seed.
	changesVariable, outVariable, seedVariable = "NFTPROXY_ENDURANCE", "NFTPROXY_ENDURANCE_OUT", "NFTPROXY_ENDURANCE_SEED"
	// fewChanges is the number of changes without that variable.
	fewChanges = 4000
	samples    = 50
	patience   = 5 * time.Minute
)

// sample is what the process and the kernel hold after a number of changes.
type sample struct {
	Changes, Watches int
	Seconds          float64
	// MemoryMB is the resident set, HeapMB what Go's heap has in use.
	MemoryMB, HeapMB        float64
	Goroutines, Descriptors int
	Chains, Sets, Elements  int
}

// TestEndurance makes changes of Services and endpoints by the thousand, or by the million, on an API
// server that ends each watch after 80 events. What the process and the kernel hold does not grow,
// and at the end the kernel holds what the objects ask for.
func TestEndurance(t *testing.T) {
	changes := number(t, changesVariable, fewChanges)
	seed := number(t, seedVariable, int(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	r := newRig(t)
	w := newWorld(r.server, uint64(seed))
	r.start()
	var all []sample
	start := time.Now()
	for n := 1; n <= changes; n++ {
		w.change()
		if n%(changes/samples) == 0 {
			s := r.sample()
			s.Changes, s.Seconds = n, time.Since(start).Seconds()
			all = append(all, s)
			write(t, all)
		}
	}
	r.verify()
	s := all[len(all)-1]
	t.Logf("%d changes, %d watches, %d of them with a version too old, %.0f s", changes, r.server.watches,
		r.server.expired, s.Seconds)
	r.logSyncs()
	if want := changes / watchedEvents / 2; r.server.watches < want {
		t.Errorf("only %d watches: want %d", r.server.watches, want)
	}
	checkBounded(t, all)
}

// write writes the figures so far, and a picture of them.
func write(t *testing.T, all []sample) {
	t.Helper()
	out := os.Getenv(outVariable)
	if out == "" {
		return
	}
	text, err := json.MarshalIndent(all, "", "\t")
	must(t, err)
	must(t, os.WriteFile(out+".json", append(text, '\n'), 0o644))
	must(t, os.WriteFile(out+".svg", []byte(plot(all)), 0o644))
}

// checkBounded compares the second half of the samples with the first: random changes go up and down, but
// what leaks grows with their number. In a short run the process still warms up, and chains that became idle
// in the last ten seconds are all of them.
func checkBounded(t *testing.T, all []sample) {
	t.Helper()
	warm := 1.0
	if all[len(all)-1].Seconds < time.Minute.Seconds() {
		warm = 3
	}
	for _, c := range curves() {
		early, late := 0.0, 0.0
		for i, s := range all {
			switch v := c.of(&s); {
			case i < len(all)/2:
				early = max(early, v)
			default:
				late = max(late, v)
			}
		}
		t.Logf("%s: at most %.0f in the first half, %.0f in the second", c.what, early, late)
		if late > warm*(early*c.factor+c.margin) {
			t.Errorf("%s grows: at most %.1f in the first half, %.1f in the second", c.what, early, late)
		}
	}
}

// curve is one of the figures of a sample. It may grow to factor times what it was, and margin more.
type curve struct {
	what           string
	of             func(*sample) float64
	factor, margin float64
}

func curves() []curve {
	return []curve{
		{"memory of the process [MB]", func(s *sample) float64 { return s.MemoryMB }, 1.2, 10},
		{"heap in use [MB]", func(s *sample) float64 { return s.HeapMB }, 1.3, 10},
		{"goroutines", func(s *sample) float64 { return float64(s.Goroutines) }, 1, 20},
		{"file descriptors", func(s *sample) float64 { return float64(s.Descriptors) }, 1, 10},
		{"chains and sets in the kernel", func(s *sample) float64 { return float64(s.Chains + s.Sets) }, 1.3, 10},
		{"elements in the kernel", func(s *sample) float64 { return float64(s.Elements) }, 1.2, 100},
	}
}

func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// rig is a proxy that runs as a process in a namespace, beside its API server.
type rig struct {
	*testing.T
	ns              *testnet.Namespace
	server          *apiServer
	binary, address string
	conn            *kernel.Conn
	proxy           *child.Process
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, ns: testnet.NamespaceForTest(t, "endurance"), server: newAPIServer(),
		binary: filepath.Join(t.TempDir(), "nftproxy")}
	must(t, child.Build(r.binary, filepath.Join("..", ".."), "./cmd/nftproxy"))
	l, err := r.ns.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	r.address = l.Addr().String()
	server := r.server.serve(l)
	t.Cleanup(func() {
		r.server.close()
		_ = server.Close()
	})
	r.conn, err = kernel.Open(kernel.Config{NetNS: r.ns.Fd()})
	must(t, err)
	t.Cleanup(func() { _ = r.conn.Close() })
	return r
}

const metricsAddress = "127.0.0.1:10249"

func (r *rig) flags() []string {
	return []string{"--master=http://" + r.address, "--hostname-override=node", "--cluster-cidr=10.0.0.0/8"}
}

// start starts the proxy, and returns after its first sync.
func (r *rig) start() {
	r.Helper()
	cmd := exec.Command(r.binary, append([]string{"run", "--healthz-bind-address=", "--metrics-bind-address=" +
		metricsAddress, "-v=2"}, r.flags()...)...)
	var err error
	r.proxy, err = child.Start(r.ns, cmd)
	must(r, err)
	r.Cleanup(func() {
		_ = r.proxy.Kill()
		if r.Failed() {
			r.Log(r.proxy.Tail(60))
		}
	})
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	_, _, err = r.proxy.Await(ctx, 0, child.Line.Synced)
	must(r, err)
}

// sample asks the process for its metrics, and the kernel for its tables.
func (r *rig) sample() sample {
	r.Helper()
	m := r.metrics()
	s := sample{
		Watches: r.server.started(), MemoryMB: m["process_resident_memory_bytes"] / 1e6,
		HeapMB:     m["go_memstats_heap_inuse_bytes"] / 1e6,
		Goroutines: int(m["go_goroutines"]), Descriptors: int(m["process_open_fds"]),
	}
	nothing := &nft.Program{IPv4: &nft.Table{Family: nft.IPv4, Name: config().Table}, IPv6: &nft.Table{Family: nft.IPv6,
		Name: config().Table}}
	for _, f := range nft.Families() {
		contents, err := r.conn.ReadTable(nothing.Table(f))
		must(r, err)
		s.Chains += len(contents.Chains)
		s.Sets += len(contents.Sets)
		for _, set := range contents.Sets {
			s.Elements += len(set.Elements)
		}
	}
	return s
}

func (s *apiServer) started() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches
}

// metrics are the process's metrics without labels.
func (r *rig) metrics() map[string]float64 {
	r.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context,
		network, address string) (net.Conn, error) {
		return r.ns.Dial(ctx, network, address)
	}}}
	response, err := client.Get("http://" + metricsAddress + "/metrics")
	must(r, err)
	defer response.Body.Close()
	values := map[string]float64{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if name, value, found := strings.Cut(lines.Text(), " "); found && !strings.HasPrefix(name, "#") {
			values[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	return values
}

// logSyncs logs how many syncs there were, the slowest, and which other lines the process has logged.
func (r *rig) logSyncs() {
	r.Helper()
	lines, _ := r.proxy.Logged(0)
	var slowest child.Line
	syncs, others := 0, map[string]int{}
	took := func(l child.Line) time.Duration { return time.Duration(l.Compile + l.Read + l.Plan + l.Apply) }
	for _, l := range lines {
		switch {
		case l.Synced():
			if syncs++; took(l) > took(slowest) {
				slowest = l
			}
		default:
			others[l.Level+" "+l.Msg+" "+l.Err]++
		}
	}
	r.Logf("%d syncs; the slowest took %v: %s", syncs, took(slowest), slowest.Text)
	for text, n := range others {
		r.Logf("%d times: %s", n, text)
	}
}

// verify waits until the kernel's tables are those that the objects ask for.
func (r *rig) verify() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	for {
		_, changed := r.proxy.Logged(0)
		var out []byte
		err := r.ns.Do(func() (err error) {
			out, err = exec.Command(r.binary, append([]string{"verify"}, r.flags()...)...).CombinedOutput()
			return err
		})
		if err == nil {
			return
		}
		select {
		case <-changed: // there was another sync
		case <-r.proxy.Exited():
			r.Fatalf("the proxy ended: %v", r.proxy.Err())
		case <-ctx.Done():
			r.Fatal(fmt.Errorf("verify: %w\n%s", err, out))
		}
	}
}
