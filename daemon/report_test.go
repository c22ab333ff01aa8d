package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/daemon/affinity"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/process"
	"nftproxy/daemon/proxy"
	"nftproxy/look/traffic"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// listener is a reporter with its log and its events.
type listener struct {
	reporter
	mu     sync.Mutex
	text   bytes.Buffer
	events []watch.Event
}

func newListener() *listener {
	l := &listener{}
	l.reporter = reporter{node: "node-1", log: slog.New(slog.NewJSONHandler(l, nil)), record: func(e watch.Event) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.events = append(l.events, e)
	}}
	return l
}

// sysctls are settings in a directory, with the listener's log and events.
func (l *listener) sysctls(wanted conntrack.Sysctls, dir string) *Sysctls {
	return NewSysctls(Config{Log: l.log, Node: l.node, Sysctls: wanted, SysctlFiles: conntrack.Files{Settings: dir}},
		l.record)
}

func (l *listener) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// logged is the log as it is now.
func (l *listener) logged() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// lines returns the log by level and message.
func (l *listener) lines(t *testing.T) []string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for d := json.NewDecoder(bytes.NewReader(l.text.Bytes())); d.More(); {
		var line struct{ Level, Msg string }
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line.Level+" "+line.Msg)
	}
	return lines
}

// TestOccupancyLogger: the log warns of a full table once while it is full.
func TestOccupancyLogger(t *testing.T) {
	l := newListener()
	observe := l.occupancyLogger()
	full := conntrack.Occupancy{Entries: 1000, Limit: 1000, Full: true}
	for _, o := range []conntrack.Occupancy{
		{Entries: 900, Limit: 1000}, full, full, {Full: true, Err: errors.New("no answer")}, full,
		{Entries: 10, Limit: 1000}, {Entries: 11, Limit: 1000}, {Err: errors.New("no answer")}, full,
	} {
		observe(o)
	}
	want := []string{
		"WARN the conntrack table is full: the kernel drops new connections",
		"INFO the conntrack table has room again",
		"WARN the conntrack table is full: the kernel drops new connections",
	}
	if diff := cmp.Diff(want, l.lines(t)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	for _, words := range []string{`"entries":1000`, `"limit":1000`, "--conntrack-min", "net.netfilter.nf_conntrack_max"} {
		if !bytes.Contains(l.text.Bytes(), []byte(words)) {
			t.Errorf("the log lacks %s:\n%s", words, l.text.String())
		}
	}
	if len(l.events) != 2 || l.events[0].Object != watch.NodeObject("node-1") ||
		l.events[0].Reason != watch.ReasonConntrackFull {
		t.Errorf("events: %+v", l.events)
	}
}

// TestSweepLogger: the log has a failure once while it lasts. It warns of a Service port
// without room for more clients once while that lasts.
func TestSweepLogger(t *testing.T) {
	l := newListener()
	observe := l.sweepLogger()
	full := affinity.Run{Name: ruleset.AffinityName{Service: "ns/web", Map: "affinity-ns/web/tcp/80"}, Clients: 65_535,
		Limit: 65_535}
	swept := full
	swept.Swept, swept.Clients = 5, 65_530
	for _, r := range []affinity.Run{
		{Limit: 65_535}, full, full, swept, {Name: full.Name, Clients: 10, Limit: 65_535}, full,
		{Err: errors.New("no"), Limit: 65_535}, {Err: errors.New("no"), Repeated: true, Limit: 65_535},
	} {
		observe(r)
	}
	const isFull = "WARN a Service port cannot remember more clients; further clients are served without session affinity"
	want := []string{isFull, "INFO forgot clients of endpoints that are gone", isFull,
		"WARN could not sweep the remembered clients; will try again"}
	if diff := cmp.Diff(want, l.lines(t)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// TestReportSysctls: the log has each setting, and the Node gets one event for each
// reason.
func TestReportSysctls(t *testing.T) {
	l := newListener()
	failed := func(name, current, wanted string, err error) conntrack.Setting {
		return conntrack.Setting{Name: name, Current: current, Wanted: wanted, Err: fmt.Errorf("set %s to %s: %w", name,
			wanted, err)}
	}
	l.reportSysctls([]conntrack.Setting{
		{Name: "fine", Current: "1", Wanted: "1"},
		{Name: "changed", Current: "2", Wanted: "2", Set: true},
		{Name: "left alone, and missing", Err: fs.ErrNotExist},
		failed("a", "1", "2", unix.EROFS), failed("b", "3", "4", unix.EROFS), failed("c", "", "6", conntrack.ErrHostOnly),
	})
	want := []string{
		"INFO changed a kernel setting",
		"WARN could not set a kernel setting; going on without it",
		"WARN could not set a kernel setting; going on without it",
		"WARN could not set a kernel setting; going on without it",
	}
	if diff := cmp.Diff(want, l.lines(t)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	notes := map[string]bool{}
	for _, e := range l.events {
		if e.Object != watch.NodeObject("node-1") || e.Reason != watch.ReasonSysctl {
			t.Errorf("event %+v", e)
		}
		notes[e.Note] = true
	}
	if diff := cmp.Diff(map[string]bool{
		"read-only file system: cannot set a=2 (is 1), b=4 (is 3)":      true,
		conntrack.ErrHostOnly.Error() + ": cannot set c=6 (is unknown)": true,
	}, notes); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestSysctlsAppear: settings that appear with the first rules are set after them, once.
// No report says that they were missing before.
func TestSysctlsAppear(t *testing.T) {
	l := newListener()
	dir := t.TempDir()
	sysctls := l.sysctls(conntrack.Sysctls{TCPEstablished: time.Hour, TCPCloseWait: time.Hour}, dir)
	setting := func(name string) string {
		return filepath.Join(dir, "nf_conntrack_tcp_timeout_"+name)
	}
	write := func(name, text string) {
		if err := os.WriteFile(setting(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when, want string, lines ...string) {
		t.Helper()
		got, err := os.ReadFile(setting("established"))
		if string(got) != want || (err != nil) != (want == "") {
			t.Errorf("%s the setting is %q, %v", when, got, err)
		}
		if diff := cmp.Diff(lines, l.lines(t)); diff != "" {
			t.Errorf("%s the log has (-want +got):\n%s", when, diff)
		}
	}
	sysctls.atStart()
	expect("at first", "")
	write("established", "432000\n")
	failed := errors.New("no")
	sysctls.observe(proxy.Sync{Err: proxy.FamilyErrors{nft.IPv4: failed, nft.IPv6: failed}})
	expect("after a failure", "432000\n")
	sysctls.observe(proxy.Sync{})
	said := []string{"INFO changed a kernel setting", "WARN could not set a kernel setting; going on without it"}
	expect("after the first sync", "3600\n", said...)
	write("established", "5\n")
	sysctls.observe(proxy.Sync{})
	expect("after another sync", "5\n", said...)
	if len(l.events) != 1 || !strings.Contains(l.events[0].Note, "nf_conntrack missing") {
		t.Errorf("events: %+v", l.events)
	}
}

// TestSysctlsToldOnce: a failure at the start is not reported again when another setting,
// missing then, is set later.
func TestSysctlsToldOnce(t *testing.T) {
	l, dir := newListener(), t.TempDir()
	sysctls := l.sysctls(conntrack.Sysctls{MaxPerCore: 1, Min: 1 << 20, TCPEstablished: time.Hour}, dir)
	for file, mode := range map[string]os.FileMode{"max": 0o444, "buckets": 0o600} { // as in a network namespace
		if err := os.WriteFile(filepath.Join(dir, "nf_conntrack_"+file), []byte("1\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	const failed, changed = "WARN could not set a kernel setting; going on without it", "INFO changed a kernel setting"
	sysctls.atStart()
	if diff := cmp.Diff([]string{failed, changed}, l.lines(t)); diff != "" || len(l.events) != 1 {
		t.Errorf("%d events at the start, log (-want +got):\n%s", len(l.events), diff)
	}
	sysctls.observe(proxy.Sync{})
	if diff := cmp.Diff([]string{failed, changed, failed}, l.lines(t)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if len(l.events) != 2 || !strings.Contains(l.events[0].Note, "nf_conntrack_max") ||
		strings.Contains(l.events[1].Note, "nf_conntrack_max") || !strings.Contains(l.events[1].Note,
		"nf_conntrack_tcp_timeout_established") {
		t.Errorf("events: %+v", l.events)
	}
}

// TestQuarantineEvents: a Service gets an event when the kernel refuses it, and another
// when the reason changes. A refused part that is no Service gets none.
func TestQuarantineEvents(t *testing.T) {
	watcher := watcherOf(t, `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, uid: u-web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
`)
	l, known := newListener(), map[string]string{}
	tooBig := map[string]error{"shop/web": errors.New("too big")}
	for _, refused := range []map[string]error{
		tooBig, tooBig, {"shop/web": errors.New("no memory")}, nil, {"no service": errors.New("too big")}, tooBig,
	} {
		l.logQuarantine(watcher, known, refused)
	}
	object := watch.Object{Kind: "Service", Namespace: "shop", Name: "web", UID: "u-web"}
	want := []watch.Event{
		{Object: object, Reason: watch.ReasonRefused, Note: "left out on node node-1: too big"},
		{Object: object, Reason: watch.ReasonRefused, Note: "left out on node node-1: no memory"},
		{Object: object, Reason: watch.ReasonRefused, Note: "left out on node node-1: too big"},
	}
	if diff := cmp.Diff(want, l.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// watcherOf returns a watcher that has read the manifests.
func watcherOf(t *testing.T, manifests string) *watch.Watcher {
	t.Helper()
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	mailbox := service.NewMailbox()
	watcher := watch.NewWatcher(watch.Options{Node: "node-1"}, mailbox)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- watcher.RunManifests(ctx, path) }()
	<-mailbox.C()
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return watcher
}

// TestReportRefusals: packets to an idled Service ask for its pods, by the words that OpenShift waits for. Clients that
// keep coming make a warning only of a Service that is neither idled nor holds them.
func TestReportRefusals(t *testing.T) {
	w := watcherOf(t, `
apiVersion: v1
kind: Service
metadata:
  name: idled
  namespace: shop
  uid: u-idled
  annotations: {idling.alpha.openshift.io/idled-at: "2026-01-01T00:00:00Z"}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: held, namespace: shop, uid: u-held}
spec: {clusterIP: 10.96.0.12, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, uid: u-web}
spec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}
`)
	refused := func(name service.Name) traffic.Refused {
		return traffic.Refused{Subject: traffic.Subject{Name: name, Cause: ruleset.NoEndpoints}, Packets: 1, Total: 1}
	}
	both := []traffic.Refused{refused("shop/idled"), refused("shop/web")}
	l := newListener()
	observe := l.refusalObserver(w, metrics.New(prometheus.NewRegistry()))
	held := refused("shop/held")
	held.Cause = ruleset.Held
	for range 2 {
		observe(traffic.Refusals{At: time.Date(2026, 1, 1, 0, 0, 10, 0, time.UTC), Services: append(both, held),
			Persistent: both, Held: []traffic.Held{{Name: "shop/held", Connections: 1}}, HeldFull: true})
		both = nil
	}
	want := []watch.Event{
		{Object: watch.Object{Kind: "Service", Namespace: "shop", Name: "held", UID: "u-held"}, Reason: "NeedPods",
			Note: "clients connect on node node-1: the Service has no endpoints that serve and needs pods"},
		{Object: watch.Object{Kind: "Service", Namespace: "shop", Name: "idled", UID: "u-idled"}, Reason: "NeedPods",
			Note: "clients connect on node node-1: the Service is idled and needs pods"},
		{Object: watch.Object{Kind: "Service", Namespace: "shop", Name: "web", UID: "u-web"}, Reason: "NoEndpoints",
			Note: "clients keep connecting on node node-1 and are refused: the Service has no endpoints that serve; check its " +
				"selector, and whether its pods are ready"},
	}
	if diff := cmp.Diff(want, l.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if n := strings.Count(l.text.String(), "as many connections wait for endpoints"); n != 1 {
		t.Errorf("%d lines about connections that are not remembered:\n%s", n, &l.text)
	}
}

// missingTable answers as a kernel without ctnetlink, until the module is loaded.
type missingTable struct {
	mu     sync.Mutex
	loaded bool
}

func (m *missingTable) Flows(context.Context, conntrack.Filter, func(conntrack.Flow) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loaded {
		return nil
	}
	return fmt.Errorf("dump conntrack table: %w (is the kernel module nf_conntrack_netlink missing?)", unix.EINVAL)
}

func (m *missingTable) Size(context.Context) (entries, buckets int, err error) {
	return 0, 0, unix.EINVAL
}

func (m *missingTable) Delete(context.Context, []conntrack.Flow) (int, error) { return 0, nil }

// TestConntrackMissing: the Cleaner repeats its pass, and the log says so once.
func TestConntrackMissing(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for three seconds")
	}
	l, table, runs := newListener(), &missingTable{}, make(chan conntrack.Run, 100)
	observe := func(r conntrack.Run) {
		l.logPass(r)
		runs <- r
	}
	cleaner := conntrack.NewCleaner(table, conntrack.NewIndex(conntrack.Options{}),
		conntrack.CleanerConfig{Observe: observe})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- cleaner.Run(ctx) }()
	cleaner.SyncDone(snapshots.NewBuilder(service.Node{Name: "node-1"}).Snapshot(), true)
	for range 2 {
		if r := <-runs; !errors.Is(r.Err, unix.EINVAL) {
			t.Errorf("%+v", r)
		}
	}
	table.mu.Lock()
	table.loaded = true
	table.mu.Unlock()
	for r := range runs {
		if r.Err == nil {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"WARN could not remove all stale conntrack entries; will try again"},
		l.lines(t)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if !bytes.Contains(l.text.Bytes(), []byte("nf_conntrack_netlink missing")) {
		t.Errorf("the log does not say what is missing:\n%s", l.text.String())
	}
}

// TestChurnIsQuiet: ten busy minutes have a hundred changes a second, each with a sync and
// a pass that removes flows. The log at the default level has some hundred lines for each
// message at once, and ten a minute later.
func TestChurnIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log, _ := process.NewLogger(&out, "", 0)
		r := reporter{node: "node-1", log: log, record: func(watch.Event) {}}
		sync := r.syncObserver(nil)
		for i := range 100 * 60 * 10 {
			sync(proxy.Sync{Written: 2})
			r.logPass(conntrack.Run{Removed: map[conntrack.Reason]int{"endpoint gone": 1}})
			if i%2 == 0 { // A kernel that refuses each other program for a reason of its own.
				sync(proxy.Sync{Err: fmt.Errorf("element %d: %w", i, errors.ErrUnsupported)})
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		const burst = 100 // lines of one message at once
		const kinds = 4   // removed, not in force, in force again, and the first sync
		if got, most := strings.Count(out.String(), "\n"), kinds*(burst+100+2); got > most {
			t.Errorf("%d lines in ten minutes, want %d at most", got, most)
		}
	})
}
