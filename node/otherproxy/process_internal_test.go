package otherproxy

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// proc makes a directory like /proc. Each process is "PID namespace command line"; the
// namespace - stands for one that cannot be read, and the command line unreadable after a name too.
// Of the namespaces -1 and -2 only the sockets can be read; "mark" is a socket of the namespace 1.
func proc(t *testing.T, processes ...string) string {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	add := func(name, ns, cmdline string) {
		must(os.MkdirAll(filepath.Join(dir, name, "ns"), 0o755))
		if before, file, has := strings.Cut(cmdline, "\x00exe="); has {
			must(os.Symlink(strings.TrimRight(file, "\x00"), filepath.Join(dir, name, "exe")))
			cmdline = before + "\x00"
		}
		program := filepath.Base(strings.Split(cmdline, "\x00")[0])
		const longest = 15
		must(os.WriteFile(filepath.Join(dir, name, "comm"), []byte(program[:min(longest, len(program))]+"\n"), 0o644))
		must(os.WriteFile(filepath.Join(dir, name, "status"), []byte("Name:\tx\nUid:\t0\t0\t0\t0\n"), 0o644))
		if strings.HasSuffix(cmdline, "unreadable\x00") {
			must(os.Mkdir(filepath.Join(dir, name, "cmdline"), 0o755))
		} else {
			must(os.WriteFile(filepath.Join(dir, name, "cmdline"), []byte(cmdline), 0o644))
		}
		if !strings.HasPrefix(ns, "-") {
			must(os.Symlink("net:["+ns+"]", filepath.Join(dir, name, "ns/net")))
		}
		if last := map[string]string{"-1": "mark", "-2": "remark"}[ns]; last != "" {
			must(os.Mkdir(filepath.Join(dir, name, "net"), 0o755))
			must(os.WriteFile(filepath.Join(dir, name, "net/unix"), []byte("Num RefCount Protocol Flags Type St Inode Path\n"+
				"0000000010a2ba6f: 00000003 00000000 00000000 0001 03  1061\n"+
				"0000000010a2ba70: 00000002 00000000 00010000 0001 01  1062 "+last+"\n"), 0o644))
		}
	}
	add("thread-self", "1", "")
	add("uptime-is-no-process", "1", "")
	for _, p := range processes {
		words := strings.Fields(p)
		add(words[0], words[1], strings.Join(words[2:], "\x00")+"\x00")
	}
	return dir
}

// TestProcesses: which processes are kube-proxy's, and whether all of the node's were seen.
func TestProcesses(t *testing.T) {
	for name, c := range map[string]struct {
		processes []string
		want      string
		node      bool
	}{
		"kubeadm": {[]string{"1 1 /sbin/init", "7 1 /usr/bin/kubelet --x",
			"9 1 /usr/local/bin/kube-proxy --config=/a"}, "runs (PID 9)", true},
		"after it has ended":     {[]string{"1 1 /sbin/init", "7 1 /usr/bin/kubelet --x"}, "does not run", true},
		"another node's":         {[]string{"7 1 /usr/bin/kubelet", "9 2 /usr/local/bin/kube-proxy"}, "does not run", true},
		"a namespace unreadable": {[]string{"7 1 /usr/bin/kubelet", "9 - kube-proxy"}, "runs (PID 9)", true},
		"the sockets tell":       {[]string{"7 1 /usr/bin/kubelet", "9 -1 kube-proxy"}, "runs (PID 9)", true},
		"elsewhere, by sockets":  {[]string{"7 1 /usr/bin/kubelet", "9 -2 kube-proxy"}, "does not run", true},
		"unreadable by sockets":  {[]string{"7 1 /usr/bin/kubelet", "9 -2 kube-proxy unreadable"}, "does not run", true},
		"a clean-up":             {[]string{"7 1 /usr/bin/kubelet", "9 1 kube-proxy --cleanup"}, "does not run", true},
		"hyperkube":              {[]string{"7 1 /hyperkube kubelet", "9 1 /hyperkube proxy"}, "runs (PID 9)", false},
		"a container":            {[]string{"1 1 /nftproxy run"}, "does not run", false},
		"a pod's namespace":      {[]string{"1 1 /pause", "9 1 /nftproxy run"}, "does not run", false},
		"an unreadable one": {[]string{"7 1 /usr/bin/kubelet", "9 1 kube-proxy unreadable"},
			"may run: PID 9 may be a kube-proxy: read PROC/9/cmdline: is a directory", true},
		"unreadable, elsewhere": {[]string{"7 1 /usr/bin/kubelet", "9 2 kube-proxy unreadable"}, "does not run", true},
		"another's cmdline":     {[]string{"7 1 /usr/bin/kubelet", "9 1 database unreadable"}, "does not run", true},
		"k3s": {[]string{"1 1 /sbin/init", "7 - /usr/local/bin/k3s server"},
			"may run: k3s (PID 7) may have a kube-proxy inside", true},
		"k3s of a version": {[]string{"1 1 /sbin/init", "7 - /usr/local/bin/k3s-v1.30 agent"},
			"may run: k3s-v1.30 (PID 7) may have a kube-proxy inside", true},
		"MicroK8s": {[]string{"1 1 /sbin/init", "7 1 /snap/microk8s/1/kubelite --x"},
			"may run: kubelite (PID 7) may have a kube-proxy inside", true},
		"OpenShift": {[]string{"1 1 /sbin/init", "6 1 /usr/bin/kubelet", "7 1 /usr/bin/openshift-sdn-node --x"},
			"may run: openshift-sdn-node (PID 7) may have a kube-proxy inside", true},
		"a version of its own": {[]string{"1 1 /sbin/init", "6 1 /usr/bin/kubelet",
			"7 1 /opt/kube-proxy-v1.30.1 --config=/a"}, "runs (PID 7)", true},
		"by its file": {[]string{"1 1 /sbin/init", "6 1 /usr/bin/kubelet",
			"7 1 /usr/bin/node-agent x exe=/usr/local/bin/k3s"}, "may run: k3s (PID 7) may have a kube-proxy inside", true},
		"kube-proxy by its file": {[]string{"1 1 /sbin/init", "6 1 /usr/bin/kubelet",
			"7 1 proxy --config=/a exe=/opt/kube-proxy"}, "runs (PID 7)", true},
		"k3s, renamed": {[]string{"7 1 /usr/bin/k3s-agent", "8 1 sh kube-proxy"},
			"may run: k3s-agent (PID 7) may have a kube-proxy inside", true},
	} {
		t.Run(name, func(t *testing.T) {
			var r Running
			dir := proc(t, c.processes...)
			node, err := r.findProcesses(dir, network{name: "mark"})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.ReplaceAll(r.String(), dir, "PROC"); node != c.node || got != c.want {
				t.Errorf("got node=%v, %s; want %v, %s", node, got, c.node, c.want)
			}
		})
	}
}

// server is the address of a server that gives this answer, with a header Server unless that is empty.
func server(t *testing.T, code int, name, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name != "" {
			w.Header().Set("Server", name)
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestHealthOfAnother: which servers answer as kube-proxy's health server.
func TestHealthOfAnother(t *testing.T) {
	for name, c := range map[string]struct {
		code         int
		server, body string
		want         bool
	}{
		"kube-proxy": {200, "", `{"lastUpdated": "2026-01-01 00:00:00 +0000 UTC","currentTime": "2026-01-01 00:00:00 ` +
			`+0000 UTC", "nodeEligible": true}`, true},
		"it fails":        {503, "", `{"lastUpdated": "2026-01-01","currentTime": "2026-01-01"}`, true},
		"nftproxy":        {200, ServerHeader, `{"lastUpdated": "2026-01-01","currentTime": "2026-01-01"}`, false},
		"another program": {200, "", `{"status": "ok"}`, false},
		"no JSON":         {200, "", "ok", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := healthOfAnother(t.Context(), server(t, c.code, c.server, c.body)); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	if healthOfAnother(t.Context(), "127.0.0.1:0") {
		t.Error("a port without a server answers")
	}
}

// TestAnswers: which servers answer as kube-proxy's metrics server.
func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		code         int
		server, body string
		want         bool
	}{
		"kube-proxy":      {200, "", "iptables", true},
		"nftproxy":        {200, ServerHeader, "nftables", false},
		"another program": {200, "", "welcome", false},
		"an error":        {404, "", "nftables", false},
		"endless":         {200, "", "nftables" + strings.Repeat(" x", 1000), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := answersAsKubeProxy(t.Context(), server(t, c.code, c.server, c.body)); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	if answersAsKubeProxy(t.Context(), "127.0.0.1:0") {
		t.Error("a port without a server answers")
	}
}
