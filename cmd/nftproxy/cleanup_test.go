package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/daemon/takeover"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

const oursWithoutOwner = `add table %s { comment "kept by nftproxy, a Kubernetes service proxy"; }`

// formerWorld is a network namespace with tables.
type formerWorld struct {
	*testing.T
	ns  *testnet.Namespace
	cmd netfilter.NFT
}

func newFormerWorld(t *testing.T) formerWorld {
	return formerWorld{t, testnet.NamespaceForTest(t, "former"), netfilter.NFTForTest(t)}
}

// run starts `nftproxy run` with a table of that name and waits for its first sync.
func (w formerWorld) run(table string, flags ...string) *running {
	w.Helper()
	r := start(w.T, w.ns, append(flags, "--nftproxy-manifests", manifest(w.T, webManifest("", "10.244.0.1")),
		"--nftproxy-table", table)...)
	r.awaitSync()
	return r
}

func (w formerWorld) load(script string) {
	w.Helper()
	if err := w.cmd.Load(w.ns, script); err != nil {
		w.Fatal(err)
	}
}

// cleanup runs `nftproxy cleanup` and returns its output.
func (w formerWorld) cleanup() string { return w.outputOf("cleanup") }

// outputOf runs nftproxy with the arguments and returns its output.
func (w formerWorld) outputOf(args ...string) string {
	w.Helper()
	out, notes, code := runIn(w.T, w.ns, args...)
	if code != 0 {
		w.Errorf("%s: exit status %d, %s", args, code, notes)
	}
	return out
}

// await waits for a table.
func (w formerWorld) await(table string) { w.Helper(); w.awaitTable(table, true) }

// awaitNone waits until there is no such table.
func (w formerWorld) awaitNone(table string) { w.Helper(); w.awaitTable(table, false) }

func (w formerWorld) awaitTable(table string, want bool) {
	w.Helper()
	for limit := time.Now().Add(awaitLimit); ; time.Sleep(20 * time.Millisecond) {
		if listing, err := w.cmd.Run(w.ns, "", "list", "tables"); err != nil || time.Now().After(limit) {
			w.Fatalf("table %s: want %t, tables are %s; %v", table, want, listing, err)
		} else if strings.Contains(listing, "table "+table+"\n") == want {
			return
		}
	}
}

func (w formerWorld) want(what string, tables ...string) {
	w.Helper()
	listing, err := w.cmd.Run(w.ns, "", "list", "tables")
	if err != nil {
		w.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(listing) {
		got = append(got, strings.TrimPrefix(strings.TrimSpace(line), "table "))
	}
	slices.Sort(got)
	slices.Sort(tables)
	if !slices.Equal(got, tables) {
		w.Errorf("%s: tables %q, want %q", what, got, tables)
	}
}

func (w formerWorld) withOwners() bool {
	w.Helper()
	var owned bool
	err := w.ns.Do(func() error {
		conn, err := kernel.Open(kernel.Config{})
		if err != nil {
			return err
		}
		defer conn.Close()
		tables, err := conn.OurTables()
		owned = len(tables) > 0 && (tables[0].Owner != 0 || tables[0].Orphan())
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return owned
}

// TestOtherTableAtRestart: a run with another --nftproxy-table removes the tables of the run before,
// in both families, once its own are in force. It removes no tables of other programs,
// even if they have our default name.
func TestOtherTableAtRestart(t *testing.T) {
	w := newFormerWorld(t)
	w.load("add table ip nftproxy; add table ip6 mine { chain endpoints-1 { }; }; add table inet mine")
	others := []string{"ip nftproxy", "ip6 mine", "inet mine"}
	w.run("old").end()
	w.want("after the first run", append(others, "ip old", "ip6 old")...)
	w.run("new").end()
	w.want("after the second run", append(others, "ip new", "ip6 new")...)
	if got, want := w.cleanup(), "removed table ip new\nremoved table ip6 new\nremoved table ip nftproxy\n"; got != want {
		t.Errorf("cleanup says %q, want %q", got, want)
	}
	w.want("after cleanup", "ip6 mine", "inet mine")
}

// TestInvalidTable: a run with --nftproxy-drop-invalid, or in kube-proxy's iptables mode, has a table beside its
// tables. A run without removes it, and so does cleanup. While the kernel takes segments out of the window for valid,
// there is none.
func TestInvalidTable(t *testing.T) {
	w := newFormerWorld(t)
	w.load("add table inet mine-invalid")
	with := func(table string, flags ...string) {
		t.Helper()
		on := w.run(table, flags...)
		w.await("inet " + table + "-invalid")
		on.end()
	}
	with("old", "--nftproxy-drop-invalid")
	w.want("after a run with the flag", "inet mine-invalid", "ip old", "ip6 old", "inet old-invalid")
	w.run("new").end()
	w.want("after a run with another name", "inet mine-invalid", "ip new", "ip6 new")
	with("new", "--proxy-mode=iptables")
	w.run("new", "--proxy-mode=iptables", "--nftproxy-drop-invalid=false").end()
	w.want("after a run without it", "inet mine-invalid", "ip new", "ip6 new")
	with("new", "--nftproxy-drop-invalid")
	if got, want := w.cleanup(), "removed table ip new\nremoved table inet new-invalid\nremoved table ip6 "+
		"new\n"; got != want {
		t.Errorf("cleanup says %q, want %q", got, want)
	}
	w.want("after cleanup", "inet mine-invalid")
	with("new", "--nftproxy-drop-invalid")
	if err := w.ns.Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "1"); err != nil {
		t.Fatal(err)
	}
	on := w.run("new", "--nftproxy-drop-invalid")
	w.awaitNone("inet new-invalid")
	on.end()
}

// TestEjectTable: a run with --nftproxy-eject=on has a table beside its tables. A run without removes it, or with
// another name that of the run before, and so does cleanup.
func TestEjectTable(t *testing.T) {
	w := newFormerWorld(t)
	w.load("add table inet mine-eject")
	on := w.run("old", "--nftproxy-eject=on")
	w.await("inet old-eject")
	on.end()
	w.want("after a run with eject", "inet mine-eject", "ip old", "ip6 old", "inet old-eject")
	w.run("new").end()
	w.want("after a run with another name", "inet mine-eject", "ip new", "ip6 new")
	on = w.run("new", "--nftproxy-eject=on")
	w.await("inet new-eject")
	on.end()
	w.run("new").end()
	w.want("after a run without eject", "inet mine-eject", "ip new", "ip6 new")
	on = w.run("new", "--nftproxy-eject=on")
	w.await("inet new-eject")
	on.end()
	if got, want := w.cleanup(), "removed table ip new\nremoved table inet new-eject\nremoved table ip6 "+
		"new\n"; got != want {
		t.Errorf("cleanup says %q, want %q", got, want)
	}
	w.want("after cleanup", "inet mine-eject")
}

// TestTablesOfKilledTraces: cleanup and the start of run remove the tables of killed traces, and
// none of a trace that may be under way.
func TestTablesOfKilledTraces(t *testing.T) {
	w := newFormerWorld(t)
	underWay := "ip nftproxy-trace-99999999999-abcdefgh"
	const killed = "ip6 nftproxy-trace-1000000000-abcdefgh"
	w.load("add table " + underWay)
	for _, want := range []string{"removed table " + killed + "\n", "no table nftproxy: nothing to remove\n"} {
		if want != "no table nftproxy: nothing to remove\n" {
			w.load("add table " + killed)
		}
		if got := w.cleanup(); got != want {
			t.Errorf("cleanup says %q, want %q", got, want)
		}
		w.want("after cleanup", underWay)
	}
	w.load("add table " + killed)
	r := w.run("nftproxy")
	w.want("beside run", underWay, "ip nftproxy", "ip6 nftproxy")
	r.end()
}

// TestRunCleanup: kube-proxy's own flag does what the command cleanup does.
func TestRunCleanup(t *testing.T) {
	w := newFormerWorld(t)
	w.load("add table ip6 mine")
	w.run("old").end()
	w.want("after a run", "ip6 mine", "ip old", "ip6 old")
	if got, want := w.outputOf("run", "--cleanup"), "removed table ip old\nremoved table ip6 old\n"; got != want {
		t.Errorf("run --cleanup says %q, want %q", got, want)
	}
	w.want("after run --cleanup", "ip6 mine")
}

// TestCleanupBesideAProxyWithoutOwner: on kernels without owners of tables, cleanup refuses to
// delete the tables of a running nftproxy, and names the process.
func TestCleanupBesideAProxyWithoutOwner(t *testing.T) {
	w := newFormerWorld(t)
	for _, family := range []string{"ip", "ip6"} { // as kernels before 6.9 make them
		w.load(strings.ReplaceAll(oursWithoutOwner, "%s", family+" nftproxy"))
	}
	proxy := w.run("nftproxy")
	if w.withOwners() {
		t.Fatal("the tables have an owner")
	}
	_, notes, code := runIn(t, w.ns, "cleanup")
	for _, says := range []string{"table ip nftproxy belongs to a running nftproxy",
		"(nftproxy run --hostname-override node-1", "stop it first"} {
		if code == 0 || !strings.Contains(notes, says) {
			t.Errorf("cleanup: exit status %d: %s; want %q", code, notes, says)
		}
	}
	w.want("after cleanup", "ip nftproxy", "ip6 nftproxy")
	proxy.end()
	w.cleanup()
	w.want("after its end")
}

// TestCleanupThatLeaves: the exit status of cleanup --kube-proxy says that what is left has to stay.
func TestCleanupThatLeaves(t *testing.T) {
	w := newFormerWorld(t)
	w.load("table ip nat { chain KUBE-SERVICES { }; chain mine { jump KUBE-SERVICES; }; }; table ip kube-proxy { };")
	_, notes, code := runIn(t, w.ns, "cleanup", "--kube-proxy")
	if code != 1 || !strings.Contains(notes, "no table of a running nftproxy") {
		t.Errorf("without nftproxy: exit status %d: %s", code, notes)
	}
	_, notes, code = runIn(t, w.ns, "cleanup", "--kube-proxy", "--force")
	if code != int(statusLeft) || !strings.Contains(notes, "nat") {
		t.Errorf("with a rule of another program: exit status %d: %s", code, notes)
	}
	w.load("flush chain ip nat mine")
	if _, notes, code = runIn(t, w.ns, "cleanup", "--kube-proxy", "--force"); code != 0 {
		t.Errorf("without it: exit status %d: %s", code, notes)
	}
}

// TestTablesOfARunningProcess: the tables of another running nftproxy stay, whether the
// kernel has owners of tables or not.
func TestTablesOfARunningProcess(t *testing.T) {
	for _, owned := range []bool{true, false} {
		name := map[bool]string{true: "owned", false: "without owner"}[owned]
		t.Run(name, func(t *testing.T) {
			w := newFormerWorld(t)
			if !owned { // as kernels before 6.9 make them
				w.load(strings.ReplaceAll(oursWithoutOwner, "%s", "ip one"))
				w.load(strings.ReplaceAll(oursWithoutOwner, "%s", "ip6 one"))
			}
			one := w.run("one")
			if got := w.withOwners(); got != owned && !owned {
				t.Fatalf("tables with owner: %v", got)
			}
			two := w.run("two")
			three := w.run("three") // by now two has looked for former tables
			all := []string{"ip one", "ip6 one", "ip two", "ip6 two", "ip three", "ip6 three"}
			w.want("with three running", all...)
			if got, want := w.cleanup(), "no table nftproxy: nothing to remove\n"; got != want {
				t.Errorf("cleanup says %q, want %q", got, want)
			}
			w.want("after a cleanup beside them", all...)
			one.end()
			three.end()
			four := w.run("four")
			four.end()
			w.want("with two and four", "ip two", "ip6 two", "ip four", "ip6 four")
			two.end()
		})
	}
}

// TestTwoProxies: two nftproxies with different options keep the same tables, on a kernel
// where tables have no owner. They name each other, write at a bounded rate, and check and
// proxies tell.
func TestTwoProxies(t *testing.T) {
	w := newFormerWorld(t)
	for _, family := range []string{"ip", "ip6"} { // as kernels before 6.9 make them
		w.load(strings.ReplaceAll(oursWithoutOwner, "%s", family+" nftproxy"))
	}
	began := time.Now()
	flags := []string{"--nftproxy-manifests", manifest(t, webManifest("", "10.244.0.1")), "--nftproxy-probe-bind-address="}
	one := start(t, w.ns, append(flags, "--cluster-cidr", "10.0.0.0/8")...)
	two := start(t, w.ns, append(flags, "--cluster-cidr", "10.128.0.0/9")...)
	for _, r := range []*running{one, two} {
		l := r.await("the other proxy", func(l logged) bool {
			return strings.Contains(l.Msg, "changes our tables again and again")
		})
		if !strings.Contains(r.log.String(), "another nftproxy: PID ") || !strings.Contains(r.log.String(),
			"nftproxy run --hostname-override node-1") {
			t.Errorf("the log line does not name the other: %+v\n%s", l, r.log.String())
		}
		repairs := strings.Count(r.log.String(), "repaired our tables")
		if most := 8 + 1 + int(time.Since(began)/(15*time.Second)); repairs > most {
			t.Errorf("%d repairs in %s, want %d at most", repairs, time.Since(began), most)
		}
	}
	if got := w.outputOf("proxies"); !strings.Contains(got, "runs 2 times with table nftproxy: PID ") {
		t.Errorf("proxies says:\n%s", got)
	}
	out, _, _ := runIn(t, w.ns, "check") // The status is that of the other findings, too.
	if !strings.Contains(out, "2 processes keep table nftproxy: PID ") {
		t.Errorf("check says:\n%s", out)
	}
}

// TestServedOnlyByARunningProxy: tables that an ended nftproxy left do not serve the node in
// kube-proxy's place.
func TestServedOnlyByARunningProxy(t *testing.T) {
	w := newFormerWorld(t)
	served := func() error {
		return w.ns.Do(checkServed)
	}
	proxy := w.run("nftproxy")
	if err := served(); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	proxy.end()
	w.want("after its end", "ip nftproxy", "ip6 nftproxy")
	if err := served(); err == nil || !strings.Contains(err.Error(), "no table of a running nftproxy for") {
		t.Errorf("after its end: got %v", err)
	}
}

// TestKubeProxyWithFewRights: with the capability CAP_NET_ADMIN alone, which processes of kube-proxy run in
// this network namespace is known all the same. Where /proc hides them, nothing is certain.
func TestKubeProxyWithFewRights(t *testing.T) {
	here, elsewhere := testnet.NamespaceForTest(t, "here"), testnet.NamespaceForTest(t, "elsewhere")
	const few = "exec setpriv --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all,+net_admin " +
		"nftproxy proxies -o json"
	look := func(before string) (running, detail string) {
		t.Helper()
		var out, problems bytes.Buffer
		cmd := exec.Command("unshare", "--mount", "sh", "-c", before+few)
		cmd.Stdout, cmd.Stderr = &out, &problems
		if err := here.Run(cmd); err != nil {
			t.Fatalf("%v: %s", err, problems.Bytes())
		}
		var report takeover.Proxies
		if err := json.Unmarshal(out.Bytes(), &report); err != nil {
			t.Fatal(err)
		}
		p := report.Proxies[1]
		return p.Running, p.Detail
	}
	kubeProxy(t, elsewhere)
	if running, detail := look(""); running == "yes" {
		t.Errorf("it runs in another namespace: %s", detail)
	}
	hidden := "mount -t proc -o hidepid=2,gid=65534 proc /proc && "
	pid := kubeProxy(t, here)
	if running, detail := look(""); running != "yes" || !strings.Contains(detail, fmt.Sprintf("PID %d", pid)) {
		t.Errorf("it runs as PID %d: got %s, %s", pid, running, detail)
	}
	if running, detail := look(hidden); running != "unknown" {
		t.Errorf("it is hidden: got %s, %s", running, detail)
	}
}

// kubeProxy starts a process with the name and all capabilities of kube-proxy.
func kubeProxy(t *testing.T, ns *testnet.Namespace) (pid int) { return sleeper(t, ns, "kube-proxy") }

// sleeper starts a process of that name in a namespace, which does nothing.
func sleeper(t *testing.T, ns *testnet.Namespace, name string, environment ...string) (pid int) {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, text, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file, "infinity")
	cmd.Env = environment
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait() // It was killed.
	})
	return cmd.Process.Pid
}

// startWithout starts a command in a namespace without some of the capabilities, and returns what it will write to
// stderr.
func startWithout(t *testing.T, ns *testnet.Namespace, cmd *exec.Cmd,
	lost func(capability uintptr) bool) *bytes.Buffer {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	started := make(chan error)
	go func() {
		// The thread has lost the capabilities for good, and ends with the goroutine.
		runtime.LockOSThread()
		err := unix.Setns(ns.Fd(), unix.CLONE_NEWNET)
		for capability := uintptr(0); err == nil && capability <= unix.CAP_LAST_CAP; capability++ {
			if lost(capability) {
				err = unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
			}
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return &stderr
}

// TestWithoutCapability: a process that may not write nftables says so and ends,
// before it has done anything. (It has given up other capabilities, and logged that.)
func TestWithoutCapability(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	cmd := exec.Command("nftproxy", "run", "--nftproxy-manifests", manifest(t, webManifest("")), "--hostname-override",
		"node-1",
		"--metrics-bind-address=", "--healthz-bind-address=", "--nftproxy-conntrack-sysctl-dir", t.TempDir())
	stderr := startWithout(t, ns, cmd, func(capability uintptr) bool { return capability == unix.CAP_NET_ADMIN })
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("it ended with %v", err)
	}
	lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "privileges") ||
		!strings.Contains(lines[1], "run needs CAP_NET_ADMIN in its network namespace") {
		t.Errorf("it said:\n%s", stderr.String())
	}
}

// TestOneCapability: the commands that look at the kernel need CAP_NET_ADMIN and no other
// capability: the DaemonSet's pod has no more.
func TestOneCapability(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	flags := []string{"--nftproxy-manifests", manifest(t, webManifest("", "10.244.0.1")), "--hostname-override", "node-1"}
	firstSync(t, ns, flags...)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{append([]string{"verify"}, flags...), 0, "1 service, from the manifests"},
		{[]string{"trace", "--timeout", "1s", "10.96.0.10:80"}, int(statusNoPacket), "no new connection came"},
	} {
		cmd := exec.Command("nftproxy", c.args...)
		stderr := startWithout(t, ns, cmd, func(capability uintptr) bool { return capability != unix.CAP_NET_ADMIN })
		_ = cmd.Wait() // the exit code says it
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%s: exit code %d, want %d, said:\n%s", c.args[0], code, c.code, stderr.String())
		}
	}
}
