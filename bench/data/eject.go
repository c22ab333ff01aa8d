package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"nftproxy/bench/result"
	"nftproxy/conntrack"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/controlplane"
)

// Ejection says how to measure what --nftproxy-eject costs a node.
type Ejection struct {
	NFTProxy string // the binary
	// Earlier, if not empty, is another build that is measured beside it.
	Earlier string
	Rounds  int
	// Part is how long a node is at rest, or under Rate connections a second, in a round.
	Part time.Duration
	Rate int
	// Services is how many Services with ten endpoints on ten nodes each node has besides; zero for none. One endpoint of
	// one of them does not answer, and clients meet it.
	Services int
	Log      io.Writer
}

// ejectModes are measured in turn.
func ejectModes() []string { return []string{"off", "report", "on"} }

// The rows of the table.
const (
	atRest    = "process at rest, ms/s"
	underLoad = "process under load, ms/s"
	ofClient  = "client and kernel, us/connection"
	oneSilent = "process with a silent endpoint, ms/s"
	byMetric  = "of it ejection, by its own metric, ms/s"
)

// Run measures nodes with each mode in turn, and writes a table: medians, and the medians of the ratios within a round.
func (e Ejection) Run(ctx context.Context, out io.Writer) (err error) {
	var nodes []*ejectNode
	defer func() {
		for _, n := range nodes {
			err = errors.Join(err, n.close())
		}
	}()
	for _, build := range []struct{ binary, name string }{{e.NFTProxy, ""}, {e.Earlier, "earlier "}} {
		for _, mode := range ejectModes() {
			if build.binary == "" {
				continue
			}
			n, err := e.start(ctx, build.binary, build.name+mode, mode)
			if err != nil {
				return fmt.Errorf("a node with --nftproxy-eject=%s of %s: %w", mode, build.binary, err)
			}
			nodes = append(nodes, n)
		}
	}
	for round := range e.Rounds {
		fmt.Fprintf(e.Log, "round %d of %d\n", round+1, e.Rounds)
		if err := e.rest(ctx, nodes); err != nil {
			return err
		}
		for _, n := range rotated(nodes, round) {
			if err := e.measure(ctx, n); err != nil {
				return err
			}
		}
	}
	e.write(out, nodes)
	return nil
}

// write writes the table. Its ratios are those of on to off, and of each mode to that of the earlier build.
func (e Ejection) write(out io.Writer, nodes []*ejectNode) {
	modes := len(ejectModes())
	pairs := [][2]*ejectNode{{nodes[modes-1], nodes[0]}}
	for i := modes; i < len(nodes); i++ {
		pairs = append(pairs, [2]*ejectNode{nodes[i-modes], nodes[i]})
	}
	fmt.Fprintf(out, "| %d rounds of %v, %d connections a second |", e.Rounds, e.Part, e.Rate)
	for _, n := range nodes {
		fmt.Fprintf(out, " %s |", n.name)
	}
	for _, p := range pairs {
		fmt.Fprintf(out, " %s / %s |", p[0].name, p[1].name)
	}
	fmt.Fprintf(out, "\n|---|%s\n", strings.Repeat("---|", len(nodes)+len(pairs)))
	rows := []string{atRest, underLoad, ofClient}
	if e.Services > 0 {
		rows = []string{atRest, oneSilent, byMetric}
	}
	for _, row := range rows {
		fmt.Fprintf(out, "| %s |", row)
		for _, n := range nodes {
			fmt.Fprintf(out, " %.2f |", result.Median(n.values[row]))
		}
		for _, p := range pairs {
			ratio, _ := pairedRatio(p[0].values[row], p[1].values[row])
			fmt.Fprintf(out, " %.2f |", ratio)
		}
		fmt.Fprintln(out)
	}
}

// ejectNode is a site with a process.
type ejectNode struct {
	*site
	name    string // of its column
	dir     string
	process *child.Process
	// values are by row, one for each round.
	values map[string][]float64
}

func (e Ejection) start(ctx context.Context, binary, name, mode string) (n *ejectNode, err error) {
	n = &ejectNode{name: name, values: map[string][]float64{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.site, err = newBareSite(mode); err != nil {
		return n, err
	}
	if n.dir, err = os.MkdirTemp("", "ejection-"); err != nil {
		return n, err
	}
	if err := os.WriteFile(filepath.Join(n.dir, "service.yaml"), []byte(e.manifest()), 0o644); err != nil {
		return n, err
	}
	n.process, err = child.Start(n.topology.Node, exec.Command(binary, "run", "--nftproxy-manifests="+n.dir,
		"--hostname-override=node", "--cluster-cidr=10.244.0.0/16",
		"--healthz-bind-address=", "--metrics-bind-address="+ejectMetrics, "--conntrack-max-per-core=0", "-v=2",
		"--nftproxy-eject="+mode))
	if err != nil {
		return n, err
	}
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, _, err = n.process.Await(limited, 0, child.Line.Synced)
	return n, err
}

func (n *ejectNode) close() error {
	var errs []error
	if n.process != nil {
		errs = append(errs, n.process.Kill())
	}
	if n.site != nil {
		errs = append(errs, n.site.close())
	}
	return errors.Join(append(errs, os.RemoveAll(n.dir))...)
}

// ejectMetrics is where a process has its metrics, in the network namespace of its node.
const ejectMetrics = "127.0.0.1:10249"

// manifest has the Service whose endpoints are pods of the node, and those that Services asks for.
func (e Ejection) manifest() string {
	var b strings.Builder
	writeService(&b, 0, endpointIPs(), func(int) string { return "node" })
	elsewhere := func(i int) string { return fmt.Sprint("node-", i%endpointCount) }
	for n := 1; n <= e.Services; n++ {
		var list []netip.Addr
		for i := range endpointCount {
			list = append(list, otherIP(endpointCount*n+i))
		}
		if n == 1 { // All but the first one answer.
			list = append(list[:1], endpointIPs()[1:]...)
		}
		writeService(&b, n, list, elsewhere)
	}
	return b.String()
}

func writeService(b *strings.Builder, n int, endpoints []netip.Addr, node func(i int) string) {
	fmt.Fprintf(b, `---
apiVersion: v1
kind: Service
metadata: {name: web-%[1]d}
spec: {clusterIPs: [%[2]v], ports: [{port: %[3]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-%[1]d-1, labels: {kubernetes.io/service-name: web-%[1]d}}
addressType: IPv4
ports: [{port: %[4]d}]
endpoints:
`, n, clusterIP(n), controlplane.ServicePort, controlplane.TargetPort)
	for i, a := range endpoints {
		fmt.Fprintf(b, "- {addresses: [%q], nodeName: %s}\n", a, node(i))
	}
}

// measure measures a node with clients.
func (e Ejection) measure(ctx context.Context, n *ejectNode) error {
	if e.Services > 0 {
		return e.silent(ctx, n)
	}
	return e.load(ctx, n)
}

// silent has ten clients a second connect to the Service of which one endpoint does not answer.
func (e Ejection) silent(ctx context.Context, n *ejectNode) error {
	before, err := child.CPUTime(n.process.PID())
	if err != nil {
		return err
	}
	own, err := n.ejectionTime(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, e.Part)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	var clients sync.WaitGroup
	defer clients.Wait()
	to := netip.AddrPortFrom(clusterIP(1), controlplane.ServicePort).String()
	for limited.Err() == nil {
		clients.Go(func() {
			if conn, err := n.pod.NS.Dial(limited, "tcp", to); err == nil {
				_ = conn.Close()
			}
		})
		select {
		case <-ticker.C:
		case <-limited.Done():
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	after, err := child.CPUTime(n.process.PID())
	if err != nil {
		return err
	}
	n.add(oneSilent, milliseconds(after-before)/e.Part.Seconds())
	ownAfter, err := n.ejectionTime(ctx)
	if err != nil {
		return err
	}
	n.add(byMetric, milliseconds(ownAfter-own)/e.Part.Seconds())
	clients.Wait()
	_, err = n.server.drain()
	return err
}

// ejectionTime is the CPU time of ejection, as the process's metrics have it.
func (n *ejectNode) ejectionTime(ctx context.Context) (time.Duration, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: n.topology.Node.Dial}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ejectMetrics+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(line, "nftproxy_ejection_look_cpu_seconds_total "); is {
			seconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return time.Duration(seconds * float64(time.Second)), err
		}
	}
	return 0, errors.New("the process has no metric of ejection's CPU time")
}

// rest measures all nodes at once: they do nothing.
func (e Ejection) rest(ctx context.Context, nodes []*ejectNode) error {
	before := make([]time.Duration, len(nodes))
	var err error
	for i, n := range nodes {
		if before[i], err = child.CPUTime(n.process.PID()); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(e.Part):
	}
	for i, n := range nodes {
		after, err := child.CPUTime(n.process.PID())
		if err != nil {
			return err
		}
		n.add(atRest, milliseconds(after-before[i])/e.Part.Seconds())
	}
	return nil
}

func (n *ejectNode) add(row string, value float64) { n.values[row] = append(n.values[row], value) }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// load opens connections at the rate, and charges a thread with what it and the kernel spend for them.
func (e Ejection) load(ctx context.Context, n *ejectNode) error {
	before, err := child.CPUTime(n.process.PID())
	if err != nil {
		return err
	}
	var spent, took time.Duration
	count := 0
	err = n.pod.NS.Do(func() error {
		return undisturbed(func() error {
			c := newClient(n.to(target{way: plainWay()}))
			began, cpu := time.Now(), conntrack.ThreadTime()
			for ; ctx.Err() == nil && time.Since(began) < e.Part; count++ {
				if _, err := c.once(); err != nil {
					return err
				}
				time.Sleep(time.Until(began.Add(time.Duration(count+1) * time.Second / time.Duration(e.Rate))))
			}
			spent, took = conntrack.ThreadTime()-cpu, time.Since(began)
			return ctx.Err()
		})
	})
	if err != nil {
		return fmt.Errorf("connect on the node with %s: %w", n.backend, err)
	}
	after, err := child.CPUTime(n.process.PID())
	if err != nil {
		return err
	}
	n.add(underLoad, milliseconds(after-before)/took.Seconds())
	n.add(ofClient, 1000*milliseconds(spent)/float64(count))
	if rate := float64(count) / took.Seconds(); rate < 0.95*float64(e.Rate) {
		fmt.Fprintf(e.Log, "only %.0f connections a second\n", rate)
	}
	_, err = n.server.drain()
	return err
}
