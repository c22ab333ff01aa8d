package otherproxy_test

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/node/otherproxy"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// world is a network namespace with rules of kube-proxy and of other programs.
type world struct {
	*testing.T
	ns      *testnet.Namespace
	watcher *watcher
}

// watcher is a Watcher, and what its last look said of changes.
type watcher struct {
	otherproxy.Watcher
	written bool
}

func newWorld(t *testing.T) world {
	return world{t, testnet.NamespaceForTest(t, "rules"), &watcher{}}
}

// backend is one of the two interfaces of iptables, and the prefix of its commands.
type backend struct {
	kind otherproxy.Kind
	name string
}

func backends() []backend {
	return []backend{{otherproxy.IPTablesNFT, "nft"}, {otherproxy.IPTablesLegacy, "legacy"}}
}

// iptables runs a command of iptables and returns its output.
func (w world) iptables(input, command string, args ...string) string {
	w.Helper()
	netfilter.NeedIPTables(w)
	path, err := aptget.Command(command, "iptables")
	if err != nil {
		w.Fatal(err)
	}
	var out, problems bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &problems
	if err := w.ns.Run(cmd); err != nil {
		w.Fatalf("%s: %v: %s", cmd, err, problems.Bytes())
	}
	return out.String()
}

// listing is all rules of a backend, sorted by table, without dates.
func (w world) listing(b backend) string {
	w.Helper()
	text := w.iptables("", "iptables-"+b.name+"-save", "-c") + w.iptables("", "ip6tables-"+b.name+"-save", "-c")
	text = regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(text, "")
	var tables []string
	for _, t := range strings.Split(text, "COMMIT\n") {
		if t != "" {
			tables = append(tables, t)
		}
	}
	slices.Sort(tables)
	return strings.Join(tables, "")
}

// load loads the rules of testdata for both families.
func (w world) load(b backend, change func(string) string) {
	w.Helper()
	rules, err := os.ReadFile("testdata/kubeproxy.rules")
	if err != nil {
		w.Fatal(err)
	}
	text := change(string(rules))
	v4 := strings.NewReplacer("TARGET", "10.0.0.5:8080", "ADDRESS", "172.30.0.1/32")
	v6 := strings.NewReplacer("TARGET", "[fd00::5]:8080", "ADDRESS", "fd00:172::1/128")
	w.iptables(v4.Replace(text), "iptables-"+b.name+"-restore", "-c")
	w.iptables(v6.Replace(text), "ip6tables-"+b.name+"-restore", "-c")
}

func (w world) find() []otherproxy.Rules {
	w.Helper()
	var found []otherproxy.Rules
	if err := w.ns.Do(func() (err error) {
		found, err = otherproxy.Find()
		return err
	}); err != nil {
		w.Fatal(err)
	}
	return found
}

func (w world) remove(r otherproxy.Rules) error {
	w.Helper()
	return w.ns.Do(func() error { return otherproxy.Remove(r) })
}

func names(found []otherproxy.Rules) []string {
	var names []string
	for _, r := range found {
		names = append(names, r.String())
	}
	return names
}

func unchanged(text string) string { return text }

// withCounters gives each rule that stays a counter.
func withCounters(text string) string {
	return strings.NewReplacer("-A INPUT -p tcp", "[7:700] -A INPUT -p tcp", "-A mine -j",
		"[3:300] -A mine -j").Replace(text)
}

// withoutKubeProxy removes from a listing the lines that are kube-proxy's.
func withoutKubeProxy(text string) string {
	own := regexp.MustCompile(
		`KUBE-(SERVICES|EXTERNAL-SERVICES|NODEPORTS|FORWARD|POSTROUTING|PROXY-[A-Z]+|S[A-Z]+-[A-Z]{16}|EXT-[A-Z]{16})\b`)
	var kept []string
	for line := range strings.Lines(text) {
		if !own.MatchString(line) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// TestIPTables: kube-proxy's chains and the rules that lead there go, in both families and both
// interfaces of iptables. The rules of others stay as they are, with their counters.
func TestIPTables(t *testing.T) {
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t)
			w.load(b, withCounters)
			before := w.listing(b)
			want := withoutKubeProxy(before)
			if want == before || !strings.Contains(want, "KUBE-MARK-MASQ") || !strings.Contains(want, "[7:700]") {
				t.Fatalf("the rules to start with:\n%s", before)
			}
			found := w.find()
			kind := string(b.kind)
			wantFound := []string{
				"ip nat (" + kind + ", 7 chains)", "ip filter (" + kind + ", 6 chains)", "ip mangle (" + kind + ", 1 chain)",
				"ip6 nat (" + kind + ", 7 chains)", "ip6 filter (" + kind + ", 6 chains)", "ip6 mangle (" + kind + ", 1 chain)",
			}
			if diff := cmp.Diff(wantFound, names(found)); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
			kinds := w.look()
			if diff := cmp.Diff([]otherproxy.Kind{b.kind}, kinds); diff != "" {
				t.Errorf("kinds (-want +got):\n%s", diff)
			}
			for r, err := range w.removeAll(nil) {
				if err != nil {
					t.Errorf("remove %s: %v", r, err)
				}
			}
			if kinds := w.look(); len(kinds) > 0 {
				t.Errorf("kinds after the removal: %v", kinds)
			}
			if diff := cmp.Diff(want, w.listing(b)); diff != "" {
				t.Errorf("after the removal (-want +got):\n%s", diff)
			}
			if found := w.find(); len(found) > 0 {
				t.Errorf("after the removal there is %v", names(found))
			}
		})
	}
}

// look asks one Watcher again and again.
func (w world) look() []otherproxy.Kind {
	w.Helper()
	var kinds []otherproxy.Kind
	if err := w.ns.Do(func() (err error) {
		kinds, w.watcher.written, err = w.watcher.Look()
		return err
	}); err != nil {
		w.Fatal(err)
	}
	return kinds
}

// removeAll returns the outcome for each table.
func (w world) removeAll(closed func(otherproxy.Opening) error) map[string]error {
	w.Helper()
	outcomes := map[string]error{}
	if err := w.ns.Do(func() error {
		return otherproxy.RemoveAll(w.Context(), otherproxy.Removal{Closed: closed}, func(r otherproxy.Rules, err error) {
			outcomes[r.Table] = err
		})
	}); err != nil {
		w.Fatal(err)
	}
	return outcomes
}

// TestOpenings: a chain that accepts packets stays, with the rule that leads there, where something closes what it
// opens. The other chains of its table go, and it goes once nothing closes any more. Rules of others stay as they are.
func TestOpenings(t *testing.T) {
	for _, b := range backends() {
		for hook, chain := range map[string]string{"forward": "KUBE-FORWARD", "input": "KUBE-NODEPORTS"} {
			t.Run(b.name+" "+hook, func(t *testing.T) {
				w := newWorld(t)
				w.load(b, func(text string) string {
					return strings.Replace(text, "-A mine\n", "-A KUBE-NODEPORTS -p tcp -m comment --comment \"ns/web:health check "+
						"node port\" -m tcp --dport 30099 -j ACCEPT\n-A mine\n", 1)
				})
				before := w.listing(b)
				asked := map[string]bool{}
				outcomes := w.removeAll(func(o otherproxy.Opening) error {
					asked[o.Table+" "+o.Hook+" "+o.Chain] = true
					if o.Hook == hook && strings.HasPrefix(o.Table, "ip ") {
						return errors.New("it rains")
					}
					return nil
				})
				if want := map[string]bool{
					"ip filter input KUBE-NODEPORTS": true, "ip filter forward KUBE-FORWARD": true,
					"ip6 filter input KUBE-NODEPORTS": true, "ip6 filter forward KUBE-FORWARD": true,
				}; !maps.Equal(asked, want) {
					t.Errorf("asked about %v", asked)
				}
				for table, err := range outcomes {
					if stays := table == "ip filter"; stays != errors.Is(err, otherproxy.ErrOpens) || !stays && err != nil || stays &&
						!strings.Contains(err.Error(), "it rains") {
						t.Errorf("%s: %v", table, err)
					}
				}
				if left := names(w.find()); len(left) != 1 || !strings.HasSuffix(left[0], ", 1 chain)") {
					t.Errorf("left: %v", left)
				}
				var want []string
				for line := range strings.Lines(withoutKubeProxy(before)) {
					want = append(want, line)
				}
				for line := range strings.Lines(before) { // those of the chain in the IPv4 table filter
					if strings.Contains(strings.TrimSpace(line)+" ", chain+" ") && !strings.Contains(line, "nodeports;") &&
						!strings.Contains(line, "KUBE-EXT") {
						want = append(want, line)
					}
				}
				got := slices.Collect(strings.Lines(w.listing(b)))
				for _, line := range got {
					if !slices.Contains(want, line) {
						t.Errorf("after the removal there is %q", line)
					}
				}
				for _, line := range []string{"-j " + chain + "\n", "-A " + chain + " "} {
					if !strings.Contains(strings.Join(got, ""), line) {
						t.Errorf("after the removal there is no %q", line)
					}
				}
				w.removeAll(func(otherproxy.Opening) error { return nil })
				if diff := cmp.Diff(withoutKubeProxy(before), w.listing(b)); diff != "" {
					t.Errorf("after nothing closes (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestWritten: a look says whether somebody has written kube-proxy's rules since the last look: the same ones again in
// iptables-nft, ones of another Service in iptables-legacy. Rules of others do not count.
func TestWritten(t *testing.T) {
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t)
			if w.look(); w.watcher.written {
				t.Error("the first look says that rules were written")
			}
			w.iptables("", "iptables-"+b.name, "-t", "mangle", "-A", "PREROUTING", "-j", "ACCEPT")
			if w.look(); w.watcher.written {
				t.Error("a look takes a table of others for kube-proxy's rules")
			}
			w.load(b, unchanged)
			if w.look(); !w.watcher.written {
				t.Error("a look does not say that rules have come")
			}
			w.iptables("", "iptables-"+b.name, "-A", "INPUT", "-p", "tcp", "--dport", "80", "-j", "ACCEPT")
			w.iptables("", "iptables-"+b.name, "-t", "nat", "-A", "CNI-HOSTPORT-DNAT", "-j", "RETURN")
			if w.look(); w.watcher.written {
				t.Error("a look takes the rules of others for kube-proxy's")
			}
			sync := "*filter\n:KUBE-FORWARD - [0:0]\n-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j " +
				"ACCEPT\nCOMMIT\n"
			w.iptables(sync, "iptables-"+b.name+"-restore", "--noflush")
			if w.look(); !w.watcher.written {
				t.Error("a look does not say that rules were written")
			}
			if w.look(); w.watcher.written {
				t.Error("a second look says so again")
			}
			if b.kind == otherproxy.IPTablesNFT {
				w.iptables(sync, "iptables-"+b.name+"-restore", "--noflush")
				if w.look(); !w.watcher.written {
					t.Error("a look does not say that the same rules were written")
				}
			}
		})
	}
}

// TestForeignRule: a table where a rule of another program leads to kube-proxy's chains stays as
// a whole. The other tables do not.
func TestForeignRule(t *testing.T) {
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t)
			w.load(b, func(text string) string {
				return strings.Replace(text, "-A CNI-HOSTPORT-DNAT ", "-A CNI-HOSTPORT-DNAT -p udp -j KUBE-SERVICES\n-A "+
					"CNI-HOSTPORT-DNAT ", 1)
			})
			before := w.listing(b)
			for table, err := range w.removeAll(nil) {
				if foreign := strings.HasSuffix(table, "nat"); foreign != errors.Is(err, otherproxy.ErrForeign) {
					t.Errorf("remove %s: %v", table, err)
				} else if foreign && !strings.Contains(err.Error(), "chain CNI-HOSTPORT-DNAT leads to KUBE-SERVICES") {
					t.Errorf("the error does not name the chain: %v", err)
				}
			}
			nat := func(text string) string { return text[strings.Index(text, "*nat"):] }
			if diff := cmp.Diff(nat(before), nat(w.listing(b))); diff != "" {
				t.Errorf("the table nat (-before +after):\n%s", diff)
			}
			if left := names(w.find()); len(left) != 2 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestNFTables: the tables with kube-proxy's name and comment go; one with its name and another
// comment stays.
func TestNFTables(t *testing.T) {
	w := newWorld(t)
	nft := netfilter.NFTForTest(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(nft.Load(w.ns, `
table ip kube-proxy { comment "rules for kube-proxy"; chain a { goto b; }; chain b { accept; }; }
table ip6 kube-proxy { comment "mine"; }
table inet kube-proxy { chain x { }; }
table ip nat { chain KUBE-ROUTER { }; }
`))
	found := w.find()
	if diff := cmp.Diff([]string{"ip kube-proxy (nftables)", "ip6 kube-proxy (nftables)"}, names(found)); diff != "" {
		t.Fatalf("found (-want +got):\n%s", diff)
	}
	must(w.remove(found[0]))
	if err := w.remove(found[1]); !errors.Is(err, otherproxy.ErrUnknownTable) {
		t.Errorf("remove a table of another program: %v", err)
	}
	listing, err := nft.Run(w.ns, "", "list", "tables")
	must(err)
	if want := "table ip6 kube-proxy\ntable inet kube-proxy\ntable ip nat\n"; listing != want {
		t.Errorf("tables %q, want %q", listing, want)
	}
}

// TestChangedMeanwhile: the kernel refuses a removal that was made for an earlier ruleset.
func TestChangedMeanwhile(t *testing.T) {
	w := newWorld(t)
	b := backends()[0]
	w.load(b, unchanged)
	found := w.find()
	w.iptables("", "iptables-nft", "-t", "nat", "-A", "CNI-HOSTPORT-DNAT", "-j", "KUBE-SERVICES")
	before := w.listing(b)
	for _, r := range found {
		if err := w.remove(r); !errors.Is(err, otherproxy.ErrChanged) {
			t.Errorf("remove %v: %v", r, err)
		}
	}
	if diff := cmp.Diff(before, w.listing(b)); diff != "" {
		t.Errorf("the rules (-before +after):\n%s", diff)
	}
}

// TestNothingMade: looking for rules makes no table, and none that iptables would see.
func TestNothingMade(t *testing.T) {
	w := newWorld(t)
	if found := w.find(); len(found) > 0 {
		t.Errorf("found %v in a new namespace", names(found))
	}
	if err := w.ns.Do(func() error {
		for _, f := range []string{"ip", "ip6"} {
			tables, err := os.ReadFile("/proc/thread-self/net/" + f + "_tables_names")
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			if len(tables) > 0 {
				t.Errorf("%s_tables: %s", f, tables)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
