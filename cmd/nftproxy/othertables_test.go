package main

import (
	"strings"
	"testing"
)

// secondTables is a node whose nftproxy has a second one beside it, with another --nftproxy-table.
type secondTables struct {
	formerWorld
	first *running
	flags []string
}

const secondHealth = "127.0.0.1:10256"

func newSecondTables(t *testing.T) *secondTables {
	w := &secondTables{formerWorld: newFormerWorld(t)}
	w.flags = []string{"--nftproxy-manifests", manifest(t, webManifest("", "10.244.0.1"))}
	w.first = start(t, w.ns, append(w.flags, "--healthz-bind-address", secondHealth)...)
	w.first.awaitSyncAndServer(secondHealth)
	return w
}

// second starts an nftproxy with the table "other" and other objects.
func (w *secondTables) second(objects string) *running {
	w.Helper()
	r := start(w.T, w.ns, "--nftproxy-manifests", manifest(w.T, objects), "--nftproxy-table", "other")
	r.awaitSync()
	return r
}

func (w *secondTables) awaitLog(text string) {
	w.Helper()
	w.first.await(text, func(l logged) bool { return l.Msg == text })
}

// says runs a command and wants an exit status and parts of the output.
func (w *secondTables) says(code int, args []string, parts ...string) {
	w.Helper()
	out, notes, got := runIn(w.T, w.ns, args...)
	for _, part := range parts {
		if got != code || !strings.Contains(out+notes, part) {
			w.Errorf("%s: exit status %d, want %d and %q:\n%s%s", args, got, code, part, out, notes)
		}
	}
}

// wantOther wants each place that tells of a second table to say so. kept is what they say of its process.
func (w *secondTables) wantOther(kept string) {
	w.Helper()
	const both = "tables other and nftproxy both serve 2 addresses and ports, and the kernel asks table other first: " +
		"10.96.0.10:80/tcp (default/web)"
	if got := get(w.T, w.ns, secondHealth, "/readyz"); !strings.Contains(got, kept) || !strings.Contains(got, both) {
		w.Errorf("/readyz: %s", got)
	}
	verify := append([]string{"verify", "--hostname-override", "node-1"}, w.flags...)
	w.says(int(statusDifferent), verify, "extra    ip table other is of "+kept, both, "extra    ip6 table other is of ")
	// red: the node forwards nothing
	w.says(int(statusRed), []string{"check"}, "yellow  other proxies: table other: table other is of "+kept, both)
	w.says(0, []string{"explain", "--from", "10.244.0.9@lo", "10.96.0.10:80"},
		"10.244.0.2:8080", "table ip other takes the packet, which the kernel asks before table nftproxy since it was made "+
			"later; it is of "+kept)
}

// TestSecondTable: a table of another nftproxy that has an address and port of ours takes the packets, and the log,
// /readyz, verify, check and explain say so, while its process runs and after it has ended. Once it has, the table
// goes: by cleanup, although another nftproxy runs, or by that one.
func TestSecondTable(t *testing.T) {
	const warning = "a table of another nftproxy may take packets from ours"
	w := newSecondTables(t)
	more := strings.NewReplacer("name: web", "name: more", "web-0", "more-0", "service-name: web", "service-name: more",
		"10.96.0.10", "10.96.0.11", "::a", "::b").Replace(webManifest("", "10.244.0.3"))
	second := w.second(webManifest("", "10.244.0.2") + "---\n" + more)
	w.awaitLog(warning)
	w.wantOther("another nftproxy, PID ")
	second.end()
	w.awaitLog(warning)
	w.wantOther("an nftproxy that has ended: nothing keeps it up to date")
	w.says(1, []string{"cleanup"}, "removed table ip other\nremoved table ip6 other\n",
		"table ip nftproxy belongs to a running nftproxy")
	w.want("after cleanup", "ip nftproxy", "ip6 nftproxy")
	w.awaitLog("a table of another nftproxy takes no packets from ours any more")
	if got := get(t, w.ns, secondHealth, "/readyz"); strings.Contains(got, "other") {
		t.Errorf("/readyz after cleanup: %s", got)
	}

	w.second(webManifest("", "10.244.0.2")).end()
	w.awaitLog("removed the table of another nftproxy that has ended")
	w.says(0, append([]string{"verify", "--hostname-override", "node-1"}, w.flags...), "same")
	w.want("after a table all of whose Services the first proxy has", "ip nftproxy", "ip6 nftproxy")
}

// TestTrialBeside: two nftproxies with different Services are no problem, and the packets of each go through its table.
func TestTrialBeside(t *testing.T) {
	w := newSecondTables(t)
	w.second(strings.NewReplacer("10.96.0.10", "10.96.0.11", "::a", "::b").Replace(webManifest("", "10.244.0.2")))
	w.says(0, append([]string{"verify", "--hostname-override", "node-1"}, w.flags...), "same")
	w.says(int(statusRed), []string{"check"}, "green   other proxies: table other: of another nftproxy")
	w.says(0, []string{"explain", "--from", "10.244.0.9@lo", "10.96.0.10:80"}, "10.244.0.1:8080",
		"table ip other has no rule for the packet")
	w.says(0, []string{"explain", "--from", "10.244.0.9@lo", "10.96.0.11:80"}, "10.244.0.2:8080")
	if got := get(t, w.ns, secondHealth, "/readyz"); strings.Contains(got, "other") {
		t.Errorf("/readyz: %s", got)
	}
}
