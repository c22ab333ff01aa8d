package otherproxy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFelixProcess: which process is Felix, and what its environment says.
func TestFelixProcess(t *testing.T) {
	for name, c := range map[string]struct {
		process, environ string
		pid              int
		mode             string
	}{
		"up to 3.32": {"9 1 calico-node -felix", "A=B\x00FELIX_NFTABLESMODE=Enabled\x00", 9, felixNFTables},
		"from 3.33 on": {"9 1 /usr/bin/calico component felix", "felix_NFTablesMode=DISABLED\x00", 9,
			felixIPTables},
		"outside of containers": {"9 1 /usr/bin/calico-felix -c /etc/calico/felix.cfg", "FELIX_NFTABLESMODE=Auto", 9,
			felixAuto},
		"no setting":         {"9 1 calico-node -felix", "FELIX_IPV6SUPPORT=true\x00", 9, ""},
		"an unknown setting": {"9 1 calico-node -felix", "FELIX_NFTABLESMODE=Sometimes\x00", 9, felixAuto},
		"an empty setting":   {"9 1 calico-node -felix", "FELIX_NFTABLESMODE=\x00", 9, felixAuto},
		"none":               {"9 1 calico-node -felix", "FELIX_NFTABLESMODE=None\x00", 9, felixIPTables},
		"no environment":     {"9 1 calico-node -felix", "", 9, ""},
		"elsewhere":          {"9 2 calico-node -felix", "FELIX_NFTABLESMODE=Enabled\x00", 0, ""},
		"another part":       {"9 1 calico-node -confd", "FELIX_NFTABLESMODE=Enabled\x00", 0, ""},
		"another component":  {"9 1 calico component typha", "FELIX_NFTABLESMODE=Enabled\x00", 0, ""},
		"unreadable":         {"9 1 calico-node unreadable", "FELIX_NFTABLESMODE=Enabled\x00", 0, ""},
		"another program":    {"9 1 sh calico-node -felix", "FELIX_NFTABLESMODE=Enabled\x00", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := proc(t, "1 1 /sbin/init", c.process)
			if c.environ != "" {
				if err := os.WriteFile(filepath.Join(dir, "9", "environ"), []byte(c.environ), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var f Felix
			if err := f.findProcessIn(dir, network{name: "mark"}); err != nil {
				t.Fatal(err)
			}
			if f.PID != c.pid || f.mode != c.mode {
				t.Errorf("got PID %d with mode %q, want %d with %q", f.PID, f.mode, c.pid, c.mode)
			}
		})
	}
}

// TestFelixProcesses: a process that poses as Felix tells nothing that another one does not.
func TestFelixProcesses(t *testing.T) {
	const enabled, auto = "FELIX_NFTABLESMODE=Enabled\x00", "FELIX_NFTABLESMODE=Auto\x00"
	for name, c := range map[string]struct {
		environ [3]string
		user    string // of the last; empty for root
		mode    string
	}{
		"they agree":          {[3]string{enabled, enabled, enabled}, "", felixNFTables},
		"one says nothing":    {[3]string{enabled, "A=B\x00", enabled}, "", ""},
		"one differs":         {[3]string{enabled, enabled, auto}, "", ""},
		"one is another's":    {[3]string{auto, auto, enabled}, "1000", felixAuto},
		"it has become one's": {[3]string{auto, auto, enabled}, "1000\t0", felixAuto},
	} {
		t.Run(name, func(t *testing.T) {
			dir := proc(t, "1 1 /sbin/init", "10 1 calico-node -felix", "11 1 calico-felix", "9 1 calico-felix")
			for i, pid := range []string{"10", "11", "9"} {
				if err := os.WriteFile(filepath.Join(dir, pid, "environ"), []byte(c.environ[i]), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.user != "" {
				status := "Name:\tx\nUid:\t" + c.user + "\t0\t0\t0\n"
				if err := os.WriteFile(filepath.Join(dir, "9", "status"), []byte(status), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var f Felix
			if err := f.findProcessIn(dir, network{name: "mark"}); err != nil {
				t.Fatal(err)
			}
			if f.PID == 0 || f.mode != c.mode {
				t.Errorf("PID %d with mode %q, want %q", f.PID, f.mode, c.mode)
			}
		})
	}
}

// TestFelixLeft: chains without a process, where all of the node's are seen, are nobody's.
func TestFelixLeft(t *testing.T) {
	f := Felix{Planes: []string{planeNFTables}, Sign: true, left: true}
	if f.Depends() || !f.There() || !strings.Contains(f.String(), "does not run, and has left chains of nftables") {
		t.Errorf("%s: depends %v", f, f.Depends())
	}
}

// TestFelixAfter: what Felix has without kube-proxy's nftables tables, by its chains, its setting and these tables.
func TestFelixAfter(t *testing.T) {
	for _, c := range []struct {
		planes, mode string
		sign         bool
		after        string
		depends      bool
		text         string // a part of it
	}{
		{"", "", true, "", false, "no Felix is seen"},
		{planeNFTables, "", true, "", true, "which the node does not tell"},
		{planeNFTables, "", false, planeNFTables, false, "uses nftables, also without"},
		{planeNFTables, felixNFTables, true, planeNFTables, false, "uses nftables, also without"},
		{planeNFTables, felixAuto, true, planeIPTables, true, "uses nftables while kube-proxy's nftables tables are " +
			"there, and will " +
			"use iptables without them (FELIX_NFTABLESMODE=auto)"},
		{planeNFTables, felixAuto, false, planeIPTables, false, "will use iptables"}, // it is about to restart
		{planeNFTables, felixIPTables, true, planeIPTables, false, "will use iptables"},
		{planeIPTables, "", true, planeIPTables, false, "uses iptables, also without"},
		{planeIPTables, felixAuto, false, planeIPTables, false, "uses iptables, also without"},
		{planeIPTables, felixNFTables, false, planeNFTables, false, "uses iptables, and will use nftables without"},
		{planeNFTables + " " + planeIPTables, "", true, "", true, "has chains of nftables and iptables"},
	} {
		f := Felix{Planes: strings.Fields(c.planes), mode: c.mode, Sign: c.sign}
		if after, depends := f.After(), f.Depends(); after != c.after || depends != c.depends {
			t.Errorf("%+v: after %q, depends %v; want %q, %v", f, after, depends, c.after, c.depends)
		}
		if !strings.Contains(f.String(), c.text) {
			t.Errorf("%+v: %s; want %q", f, f, c.text)
		}
	}
}
