package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/child"
)

// shared is the directory of the built nftproxy, readable for all users.
var shared struct {
	dir   string
	build sync.Once
	err   error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
	os.Exit(code)
}

// nftproxy builds the commands nftproxy and demo in one folder, and returns the path of the
// first.
func nftproxy(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the whole demo")
	}
	shared.build.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "demo-test-"); shared.err != nil {
			return
		}
		if shared.err = os.Chmod(shared.dir, 0o755); shared.err != nil {
			return
		}
		shared.err = errors.Join(
			child.Build(shared.dir+"/nftproxy", "..", "./cmd/nftproxy"),
			child.Build(shared.dir+"/demo", "..", "./demo"))
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.dir + "/nftproxy"
}

// unprivileged skips a test that cannot run here.
func unprivileged(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" || os.Getenv("REQUIRE_PRIVILEGED") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		unprivileged(t, "needs root")
	}
}

// nobody is the number of an ordinary user.
const nobody = 65534

// run is a running demo.
type run struct {
	*testing.T
	cmd    *exec.Cmd
	tmp    string
	pipe   io.Closer // the reading end of stdout; see rendezvous
	stdout *bufio.Reader
	output bytes.Buffer // the output so far
	stderr bytes.Buffer
}

// marker is in the environment of the processes of a test, so that the test finds them.
const marker = "NFTPROXY_DEMO_TEST"

// startDemo runs the command as root, or as an ordinary user.
func startDemo(t *testing.T, ordinary bool, args ...string) *run {
	t.Helper()
	r := &run{T: t}
	nftproxy(t)
	var err error
	if r.tmp, err = os.MkdirTemp(shared.dir, "tmp-"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(r.tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	r.cmd = exec.Command(shared.dir+"/demo", args...)
	r.cmd.Env = append(os.Environ(), "TMPDIR="+r.tmp, marker+"="+r.tmp)
	r.cmd.Stderr = &r.stderr
	switch {
	case !ordinary:
		needRoot(t)
	case os.Geteuid() == 0:
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	out, in := rendezvous(t)
	r.pipe, r.cmd.Stdout = out, in
	r.stdout = bufio.NewReader(io.TeeReader(out, &r.output))
	err = r.cmd.Start()
	_ = in.Close() // the command has its own copy
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.cmd.Process.Kill() }) // for a test that failed; otherwise the command has ended
	return r
}

// rendezvous is a pipe with room for one write of any length. A writer waits until its
// previous write was read. The demo writes line by line. So it cannot end before a test
// acts at one of its steps, however late the test gets a CPU: the last steps take a few
// milliseconds.
func rendezvous(t *testing.T) (out, in *os.File) {
	t.Helper()
	var ends [2]int
	// With O_DIRECT each write is a packet in a slot of its own. The pipe would cut off a
	// packet that does not fit into the reader's buffer, but lines fit.
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_DIRECT); err != nil {
		t.Fatalf("make a pipe of packets: %v", err)
	}
	out, in = os.NewFile(uintptr(ends[0]), "reading end"), os.NewFile(uintptr(ends[1]), "writing end")
	t.Cleanup(func() { _ = out.Close() })
	const oneSlot = 1 // bytes; the kernel rounds them up to a page
	if _, err := unix.FcntlInt(in.Fd(), unix.F_SETPIPE_SZ, oneSlot); err != nil {
		t.Fatalf("leave the pipe one slot: %v", err)
	}
	return out, in
}

// until reads the output up to a line with the text. The demo can write the next line,
// and then waits for the test to read more.
func (r *run) until(text string) {
	r.Helper()
	for {
		line, err := r.stdout.ReadString('\n')
		if strings.Contains(line, text) {
			return
		}
		if err != nil {
			_ = r.cmd.Wait() // then stderr is complete
			r.mayNot()
			r.Fatalf("no %q in the output: %v\n%s%s", text, err, &r.output, &r.stderr)
		}
	}
}

// mayNot skips the test if user namespaces are not permitted here.
func (r *run) mayNot() {
	r.Helper()
	if strings.Contains(r.stderr.String(), "permission to make network namespaces") {
		unprivileged(r.T, "%s", r.stderr.String())
	}
}

// end waits for the command. It checks how the command ended, and that it left nothing
// behind.
func (r *run) end(code int) {
	r.Helper()
	if _, err := io.Copy(io.Discard, r.stdout); err != nil && !errors.Is(err, fs.ErrClosed) {
		r.Fatal(err)
	}
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.Fatal(err)
	}
	if got := r.cmd.ProcessState.ExitCode(); got != code {
		r.mayNot()
		r.Errorf("exit code %d, want %d; output:\n%s%s", got, code, &r.output, &r.stderr)
	}
	for pid, command := range r.processes() {
		r.Errorf("process %d is left: %s", pid, command)
	}
	left, err := os.ReadDir(r.tmp)
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range left {
		r.Errorf("%s is left", f.Name())
	}
}

// processes are the processes of the run, by their PIDs.
func (r *run) processes() map[int]string {
	r.Helper()
	found := map[int]string{}
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		r.Fatal(err)
	}
	for _, path := range environs {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environ, []byte(marker+"="+r.tmp+"\x00")) {
			continue // it has gone, or we may not look at it
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil {
			r.Fatal(err)
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		found[pid] = strings.ReplaceAll(string(command), "\x00", " ")
	}
	return found
}

// proxy is the PID of the demo's nftproxy run.
func (r *run) proxy() int {
	r.Helper()
	for pid, command := range r.processes() {
		if strings.HasPrefix(command, "nftproxy run ") {
			return pid
		}
	}
	r.Fatalf("no nftproxy run among %v", r.processes())
	return 0
}

// TestDemo: the demo succeeds, shows its results, and fits 80 columns.
func TestDemo(t *testing.T) {
	for name, ordinary := range map[string]bool{"root": false, "ordinary user": true} {
		t.Run(name, func(t *testing.T) {
			r := startDemo(t, ordinary)
			r.end(0)
			for _, want := range []string{
				`(?m)^     web-1 [█▉-▏]+ +\d+ {3,}web-1 [█▉-▏]+ +\d+$`,
				`(?m)^     no endpoints  client  172\.30\.0\.20:80/tcp +TCP reset +\d+\.\d+ ms$`,
				`(?m)^     no endpoints  client  \[fd00:172::20\]:80/udp +ICMP +\d+\.\d+ ms$`,
				`packet \d+ of its kernel opened the connection\.`,
				`(?m)^     172\.30\.0\.10:80/tcp +192\.168\.100\.1, the node +10\.244\.0\.11$`,
				`(?m)^     \[fd00:172::10\]:80/udp +fd00:100::1, the node +fd00:244::b$`,
				`(?m)^     192\.168\.100\.2  192\.168\.100\.1:30080/tcp +web-\d +192\.168\.100\.1, the node$`,
				`(?m)^     web-5 █+`,
				`[1-9]\d{2,} new connections over IPv4 and IPv6 meanwhile, \d+ a second: 0 failed`,
				`(?m)^     table ip nftproxy \{$`,
				`(?m)^ +172\.30\.0\.10 \. tcp \. 80 \. 0 : 10\.244\.0\.16 \. 8080,$`,
				`(?m)^     scale 3 -> 5 +\d+( +\d+(\.\d+)?){5}$`,
				`(?m)^     restart +0 `,
				`(?m)^     v1 █+.? 1[78]\d\d\n     v2 █+.? +\d\d\d$`,
				`(?m)^     v1 +0\n     v2 █+.? 500\n     A connection to v1 that was open before lived through it: 3 echoes\.$`,
				`(?m)^     cart-2 █+.? +\d+ +cart-2 +0$`,
				`When cart-2 was lost, its \d+ clients moved, and \d+ of the other \d+\.`,
				`(?m)^     jobs-1 █+.? 60 +jobs-1 [█▉-▏]+ +\d+$`,
				`(?m)^     shop    -->  slow     -->  slow-1  8 +answered +\d+(\.\d+)? ms$`,
				`(?m)^     mail    -->  empty    --x          6 +refused: no-endpoints +-$`,
				`(?m)^All as it should be: \d+ checks in \d+\.\d s\.`,
			} {
				if !regexp.MustCompile(want).Match(r.output.Bytes()) {
					t.Errorf("nothing like %s", want)
				}
			}
			if ordinary != strings.Contains(r.output.String(), "root in a user namespace") && os.Geteuid() == 0 {
				t.Error("it does not say truly who runs it")
			}
			for line := range strings.Lines(r.output.String()) {
				if n := columns(strings.TrimSuffix(line, "\n")); n > screenWidth {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			if strings.Contains(r.output.String(), "\x1b") {
				t.Error("escape sequences where there is no terminal")
			}
			if t.Failed() {
				t.Logf("output:\n%s%s", &r.output, &r.stderr)
			}
		})
	}
}

func TestFullTable(t *testing.T) {
	r := startDemo(t, false, "--full-table")
	r.end(0)
	for _, want := range []string{"table ip6 nftproxy {", "set hairpin {\n", "chain output {\n", "# unused by now"} {
		if !strings.Contains(r.output.String(), want) {
			t.Errorf("no %q in:\n%s", want, &r.output)
		}
	}
}

// TestInterrupt: whenever Ctrl-C comes, the demo leaves nothing behind.
func TestInterrupt(t *testing.T) {
	for _, test := range []struct {
		ordinary bool
		at       string
		signal   syscall.Signal
	}{
		{false, "Make a node", syscall.SIGINT},
		{false, "Start nftproxy", syscall.SIGINT},
		{false, "Connections spread", syscall.SIGTERM},
		{false, "Replace every pod", syscall.SIGINT},
		{false, "Replace every pod", syscall.SIGHUP},
		{false, "Restart nftproxy", syscall.SIGINT},
		{true, "Start nftproxy", syscall.SIGINT},
		{true, "Replace every pod", syscall.SIGINT},
	} {
		t.Run(fmt.Sprintf("%s %v ordinary=%v", test.at, test.signal, test.ordinary), func(t *testing.T) {
			r := startDemo(t, test.ordinary)
			r.until(test.at)
			if err := r.cmd.Process.Signal(test.signal); err != nil {
				t.Fatal(err)
			}
			r.end(128 + int(syscall.SIGINT))
			if !strings.Contains(r.output.String(), "Interrupted. Everything is removed again.") {
				t.Errorf("it does not say that it was interrupted:\n%s", &r.output)
			}
		})
	}
}

// TestClosedPipe: the demo also leaves nothing behind if its reader goes away, as in
// `nftproxy demo | head`.
func TestClosedPipe(t *testing.T) {
	r := startDemo(t, false)
	r.until("Start nftproxy")
	if err := r.pipe.Close(); err != nil {
		t.Fatal(err)
	}
	r.end(128 + int(syscall.SIGINT))
}

// TestProxyDies: the demo fails if the proxy dies. The rules stay, so most steps would go
// on as before.
func TestProxyDies(t *testing.T) {
	for _, at := range [][]string{
		{"Connections spread"},
		{"Replace every pod"},
		{"The table, read back"},
		// The step checks the proxy only at its end. What follows it, a restart or the
		// end of the demo, asks the proxy to end.
		{"Replace every pod", "ok, "},
		{"How long each kernel update took", "ok, "},
	} {
		t.Run(strings.Join(at, " "), func(t *testing.T) {
			r := startDemo(t, false)
			for _, text := range at {
				r.until(text)
			}
			proxy := r.proxy()
			if err := syscall.Kill(proxy, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			for syscall.Kill(proxy, 0) == nil {
				// The demo waits for its reader, so it has not collected the process yet.
			}
			r.end(1)
			for _, want := range []string{"signal: killed", "Not as it should be."} {
				if !strings.Contains(r.output.String(), want) {
					t.Errorf("no %q in:\n%s", want, &r.output)
				}
			}
		})
	}
}

// TestWrongManifests: each step fails if something else happens than the step claims.
func TestWrongManifests(t *testing.T) {
	needRoot(t)
	path := nftproxy(t)
	for _, test := range []struct {
		name, file string
		replace    []string
		want       string
	}{
		{
			"endpoints on a closed port", "web-endpoints.yaml", []string{"protocol: TCP, port: ${POD_PORT}",
				"protocol: TCP, port: 1"},
			"Connections spread over the endpoints: 300 connections from client to 172.30.0.10:80/tcp: " +
				"expected all to be answered, but got one that was not: refused",
		},
		{
			"an endpoint that is not a pod of the service", "web-endpoints.yaml", []string{
				"${ENDPOINTS_IPV4}", "\n- addresses: [10.244.0.99]${ENDPOINTS_IPV4}",
				"${ENDPOINTS_IPV6}", "\n- addresses: [\"fd00:244::99\"]${ENDPOINTS_IPV6}",
			},
			"Connections spread over the endpoints",
		},
		{
			"endpoints where there should be none", "empty.yaml",
			[]string{"# No EndpointSlice belongs to it: it has no endpoints.", endpointOfEmpty},
			"A service without endpoints refuses at once: TCP over IPv4 from client to 172.30.0.20:80 (no endpoints): " +
				"expected refused, but got timed out",
		},
		{
			"another node port", "web.yaml",
			[]string{"protocol: TCP, port: ${PORT}, targetPort: ${POD_PORT}, nodePort: ${NODE_PORT}",
				"protocol: TCP, port: ${PORT}, targetPort: ${POD_PORT}, nodePort: 30081"},
			"A NodePort, from outside the cluster: TCP over IPv4 from outside to NodePort 192.168.100.1:30080: expected " +
				"answered, but got refused",
		},
		{
			"a canary without weights", "canary-endpoints.yaml", []string{"nftproxy.io/weight:", "example.org/weight:"},
			"A canary: weights of 90 and 10: connections of 2000 that v2 got by weights of 90 and 10: expected ",
		},
		{
			// 909 to 101 is 9 to 1, too, but then 9 to 101 is no drain.
			"a drain that leaves a weight", "canary-endpoints.yaml", []string{"${WEIGHT_V1}", "${WEIGHT_V1}9", "${WEIGHT_V2}",
				"${WEIGHT_V2}1"},
			"A drain: weight 0: connections of 500 that v2 got by weights of 0 and 10: expected 500",
		},
		{
			"a balance that is not by the client", "cart.yaml", []string{"balance: client", "balance: flow"},
			"The same client, the same endpoint: a hash: clients whose second connection went elsewhere: expected 0",
		},
		{
			"broken YAML", "empty.yaml", []string{"spec:", "spec: ["}, "empty.yaml",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			err := Run(context.Background(), Config{Out: &out, Executable: path, manifests: altered(t, test.file, test.replace)})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q; output:\n%s", err, test.want, &out)
			}
			if !strings.Contains(out.String(), "FAILED") || strings.Contains(out.String(), "All as it should be") {
				t.Errorf("the output does not show the failure:\n%s", &out)
			}
		})
	}
}

// endpointOfEmpty is an endpoint at which no server answers.
const endpointOfEmpty = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: empty, labels: {kubernetes.io/service-name: empty}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 80}]
endpoints: [{addresses: [192.0.2.1]}]
---`

// altered returns the manifests with replaced text in one of them. Each pair of strings
// is the old and the new text.
func altered(t *testing.T, file string, replace []string) fs.FS {
	t.Helper()
	all := fstest.MapFS{}
	entries, err := fs.ReadDir(embeddedManifests, "manifests")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := fs.ReadFile(embeddedManifests, "manifests/"+e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if e.Name() == file {
			changed := strings.NewReplacer(replace...).Replace(string(text))
			if changed == string(text) {
				t.Fatalf("none of %q in %s", replace, file)
			}
			text = []byte(changed)
		}
		all["manifests/"+e.Name()] = &fstest.MapFile{Data: text}
	}
	return all
}
