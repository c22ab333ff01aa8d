package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"nftproxy/internal/cluster"
	"nftproxy/internal/nftcmd"
	"nftproxy/internal/testnet"
)

const (
	fewServices  = 100
	manyServices = 10_000
	// changes is how many one-endpoint changes are measured.
	changes = 50
	// kubeProxyChanges is the same for kube-proxy, which takes seconds for each.
	kubeProxyChanges = 10
)

// spread are the numbers of endpoints that services have in turn: 10 on average.
func spread() []int { return []int{8, 9, 10, 11, 12} }

// TestScale puts 10,000 Services with 10 endpoints each on an API server of its
// own and prints how long the first program and changes of one endpoint take.
// What it asserts is that the program is right and has the shape that makes
// this possible. With NFTPROXY_COMPARE=1, kube-proxy does the same afterwards.
func TestScale(t *testing.T) {
	requireRoot(t)
	shared.rest()
	plane := ownControlPlane(t)
	nft := nftcmd.ForTest(t)

	few := newNodeOf(t, plane, "few")
	few.seedServices(0, fewServices)
	few.startProxy().stop()
	small := shapeOf(few, nft)

	n := newNodeOf(t, plane, "many")
	n.seedServices(fewServices, manyServices)
	p := n.measureStart("first program")
	if diff := cmp.Diff(small, shapeOf(n, nft)); diff != "" {
		t.Errorf("chains and rules with %d services (-) and with %d (+):\n%s", fewServices, manyServices, diff)
	}
	moved := map[int]netip.Addr{}
	n.measureChanges("nftproxy", p, 3*10*time.Millisecond, changes, moved) // its period is 10 ms
	n.measureChanges("nftproxy", p, 0, changes, moved)
	n.checkListing(nft, moved)

	p.stop()
	p = n.measureStart("restart with nothing changed")
	for _, l := range p.syncs() {
		if *l.Written != 0 {
			t.Errorf("the restart wrote: %s", l.text)
		}
	}
	p.stop()
	if os.Getenv("NFTPROXY_COMPARE") != "" {
		newNodeOf(t, plane, "kube-proxy").compare(moved)
	}
}

// scaleNamespace holds the services, whichever node sees them.
const scaleNamespace = "default"

// seedServices stores the services from one number up to another.
func (n *node) seedServices(from, to int) {
	n.t.Helper()
	start := time.Now()
	var objects []runtime.Object
	for i := from; i < to; i++ {
		s := simple(fmt.Sprintf("service-%05d", i))
		s.Namespace, s.Spec.ClusterIPs = scaleNamespace, []string{clusterIP(i).String()}
		var addrs []netip.Addr
		for j := range spread()[i%len(spread())] {
			addrs = append(addrs, endpoint(i, j))
		}
		made := slice(s.Name, s, addrs...)
		made.Namespace = scaleNamespace
		for j := range made.Endpoints {
			made.Endpoints[j].NodeName = ptr.To(fmt.Sprintf("other-%d", (i+j)%100))
		}
		objects = append(objects, s, made)
	}
	n.must(n.plane.cluster.Seed(n.ctx, objects...))
	n.t.Logf("%d services seeded in %v", to-from, time.Since(start).Round(time.Millisecond))
}

// clusterIP is that of a service by its number, endpoint that of one of its endpoints.
func clusterIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)}) }
func endpoint(i, j int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128 + byte(j), byte(i >> 8), byte(i)})
}

// movedTo is where the endpoint of one change goes: to an address of nobody's.
func movedTo(change int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 127, byte(77 + change>>8), byte(change)})
}

// measureStart starts the proxy and prints how long it took to its first sync.
func (n *node) measureStart(what string) *process {
	n.t.Helper()
	shared.nftproxy(n.t)
	start := time.Now()
	p := n.startProxy()
	l, _ := p.awaitSync(0)
	n.t.Logf("%s: %v after the informers had synced (compile %v, read %v, plan %v, apply %v), %d services, %d objects written; %v after the process was started",
		what, l.Latency, l.Compile, l.Read, l.Plan, l.Apply, *l.Services, *l.Written, time.Since(start).Round(time.Millisecond))
	if *l.Services < fewServices {
		n.t.Fatalf("the first sync has %d services", *l.Services)
	}
	return p
}

// measureChanges moves one endpoint in each of some services, one after the
// other with a rest in between, and prints the times from the API server's
// acceptance to the kernel's notice. It notes whose last endpoint went where.
func (n *node) measureChanges(who string, p *process, rest time.Duration, count int, moved map[int]netip.Addr) {
	n.t.Helper()
	l := n.listen()
	var accepted, requested []time.Duration
	for k := range count {
		i, to := k*(manyServices/count)+len(moved)/count, movedTo(len(moved))
		moved[i] = to
		wanted := n.movedSlice(i, to)
		arrived := l.expect(to)
		<-time.After(rest) // changes that come seldom: the proxy is at rest too
		before := time.Now()
		_, err := n.plane.client.DiscoveryV1().EndpointSlices(scaleNamespace).Update(n.ctx, wanted, metav1.UpdateOptions{})
		after := time.Now()
		n.must(err)
		select {
		case at := <-arrived:
			accepted, requested = append(accepted, at.Sub(after)), append(requested, at.Sub(before))
		case <-p.exited:
			n.t.Fatalf("%s ended: %v", who, p.err)
		case <-time.After(patience):
			n.t.Fatalf("%s: change %d was not in the kernel within %v (notices lost: %d times)", who, k, patience, l.missed())
		}
	}
	n.t.Logf("%s: one-endpoint change, %d of them, rest of %v in between: median %v, p99 %v after the API server accepted it; median %v, p99 %v after it was asked",
		who, count, rest, quantile(accepted, 50), quantile(accepted, 99), quantile(requested, 50), quantile(requested, 99))
}

// movedSlice is the slice of a service with its last endpoint moved.
func (n *node) movedSlice(i int, to netip.Addr) *discoveryv1.EndpointSlice {
	n.t.Helper()
	s, err := n.plane.client.DiscoveryV1().EndpointSlices(scaleNamespace).Get(n.ctx, fmt.Sprintf("service-%05d", i), metav1.GetOptions{})
	n.must(err)
	s.Endpoints[len(s.Endpoints)-1].Addresses = []string{to.String()}
	return s
}

// quantile is the smallest value that is not below so many percent of all.
func quantile(values []time.Duration, percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)*percent+99)/100-1]
}

// shape is what must not grow with the number of services.
type shape struct{ Chains, Rules int }

// shapeOf counts what nft lists in the tables, without the sets' elements.
func shapeOf(n *node, nft nftcmd.Command) map[string]shape {
	n.t.Helper()
	shapes := map[string]shape{}
	for _, family := range []string{"ip", "ip6"} {
		text, err := nft.Run(n.Node, "", "--terse", "list", "table", family, "nftproxy")
		n.must(err)
		var s shape
		inChain := false
		for l := range strings.Lines(text) {
			switch l = strings.TrimSpace(l); {
			case strings.HasPrefix(l, "chain "):
				s.Chains++
				inChain = true
			case l == "}":
				inChain = false
			case inChain && l != "" && !strings.HasPrefix(l, "type "):
				s.Rules++
			}
		}
		shapes[family] = s
	}
	n.t.Logf("chains and rules: %v", shapes)
	if shapes["ip"].Rules == 0 {
		n.t.Fatal("no rule was counted")
	}
	return shapes
}

// checkListing holds the table that nft prints against the services, and feeds
// it back.
func (n *node) checkListing(nft nftcmd.Command, moved map[int]netip.Addr) {
	n.t.Helper()
	start := time.Now()
	listing, err := nft.Ruleset(n.Node)
	n.must(err)
	n.t.Logf("nft list ruleset: %d bytes in %v", len(listing), time.Since(start).Round(time.Millisecond))

	var want []string
	for i := range manyServices {
		for j := range spread()[i%len(spread())] {
			a := endpoint(i, j)
			if to, ok := moved[i]; ok && j == spread()[i%len(spread())]-1 {
				a = to
			}
			want = append(want, fmt.Sprintf("%s %s", clusterIP(i), a))
		}
	}
	slices.Sort(want)
	var got []string
	element := regexp.MustCompile(`(10\.100\.\d+\.\d+) \. tcp \. 80 \. (?:0x)?[0-9a-f]+ : (10\.\d+\.\d+\.\d+) \. 8080`)
	for _, m := range element.FindAllStringSubmatch(listing, -1) {
		got = append(got, m[1]+" "+m[2])
	}
	slices.Sort(got)
	if !slices.Equal(want, got) {
		n.t.Errorf("the listing has %d endpoints of %d; the first of %d differences: %s", len(got), len(want), len(difference(want, got)), difference(want, got)[:1])
	}

	start = time.Now()
	text := withoutOwner(listing)
	empty := testnet.NamespaceForTest(n.t, "empty")
	n.must(nft.Load(empty, text))
	again, err := nft.Ruleset(empty)
	n.must(err)
	n.t.Logf("fed back and listed again in %v", time.Since(start).Round(time.Millisecond))
	if again := withoutOwner(again); again != text {
		d := difference(strings.Split(text, "\n"), strings.Split(again, "\n"))
		n.t.Errorf("the listing fed back lists differently: %d lines, the first %q", len(d), d[0])
	}
}

// withoutOwner takes out what a listing shows of who owns a table.
func withoutOwner(listing string) string {
	return regexp.MustCompile(`(?m)^\tflags [^\n]*\n\n?| # progname [^\n]*`).ReplaceAllString(listing, "")
}

// difference lists what only one of the two has.
func difference(a, b []string) []string {
	count := map[string]int{}
	for _, s := range a {
		count[s]++
	}
	for _, s := range b {
		count[s]--
	}
	var only []string
	for s, c := range count {
		if c != 0 {
			only = append(only, s)
		}
	}
	slices.Sort(only)
	return only
}

// compare has kube-proxy do the same, on the same objects.
func (n *node) compare(moved map[int]netip.Addr) {
	n.t.Helper()
	binary, err := cluster.Tool(n.ctx, "kube-proxy")
	n.must(err)
	start := time.Now()
	p := n.run(exec.Command(binary, "--proxy-mode=nftables", "--hostname-override="+n.name, "--cluster-cidr="+n.clusterCIDR(),
		"--kubeconfig="+n.plane.cluster.AdminKubeconfig(), "--conntrack-max-per-core=0", "-v=2",
		"--healthz-bind-address=", "--metrics-bind-address=127.0.0.1:10249"))
	l, _ := p.await("the first sync", 0, func(l line) bool { return l.has("SyncProxyRules complete", `ipFamily="IPv4"`) })
	n.t.Logf("kube-proxy: first sync after %v; %s", time.Since(start).Round(time.Millisecond), l.text)
	n.measureChanges("kube-proxy", p, 2*time.Second, kubeProxyChanges, moved) // its period is 1 s
}
