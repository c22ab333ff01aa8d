package otherproxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Running says whether kube-proxy runs in this network namespace.
type Running struct {
	// PIDs are those of kube-proxy's processes.
	PIDs []int
	// Answers is the address of a metrics server that answers as kube-proxy's; empty if none does.
	Answers string
	// Unknown says why there may be a kube-proxy that PIDs does not have; nil if there is none.
	Unknown error
}

// Yes says that kube-proxy certainly runs.
func (r Running) Yes() bool { return len(r.PIDs) > 0 || r.Answers != "" }

// No says that kube-proxy certainly does not run.
func (r Running) No() bool { return !r.Yes() && r.Unknown == nil }

// String is for people: "runs (PID 417)", "does not run", or "may run: ...".
func (r Running) String() string {
	switch {
	case len(r.PIDs) > 0:
		return fmt.Sprintf("runs (PID %d)", r.PIDs[0])
	case r.Answers != "":
		return fmt.Sprintf("runs (it answers on %s)", r.Answers)
	case r.Unknown != nil:
		return fmt.Sprintf("may run: %v", r.Unknown)
	}
	return "does not run"
}

// ErrHiddenProcesses says that the PID namespace is that of a container.
var ErrHiddenProcesses = errors.New("this container does not see the processes of the node")

// ErrHealthOfAnother says that a server answers as kube-proxy's health server does, and is no nftproxy's.
var ErrHealthOfAnother = errors.New("a health server like kube-proxy's answers")

// ErrWritten says that kube-proxy's rules change.
var ErrWritten = errors.New("its rules have changed, and no process is seen that changes them")

// ServerHeader is the value of the header Server in the answers of nftproxy's servers. By it they are told from
// kube-proxy's, whose paths they have.
const ServerHeader = "nftproxy"

// healthAddress is where kube-proxy's health server listens by default.
const healthAddress = "127.0.0.1:10256"

// metricsAddress is where kube-proxy's metrics server listens by default.
const metricsAddress = "127.0.0.1:10249"

// initialPIDNamespace is the inode of the first PID namespace (PROC_PID_INIT_INO in
// include/linux/proc_ns.h).
const initialPIDNamespace = 0xEFFFFFFC

// LookForKubeProxy looks for kube-proxy's processes, and asks the metrics server on port 10249,
// for two seconds at most. A process of another network namespace does not count.
func LookForKubeProxy(ctx context.Context) (Running, error) {
	var r Running
	node, err := r.findInNode()
	if err != nil {
		return r, err
	}
	if !node && r.Unknown == nil {
		r.Unknown = ErrHiddenProcesses
	}
	if answersAsKubeProxy(ctx, metricsAddress) {
		r.Answers = metricsAddress
	}
	if r.Unknown == nil && healthOfAnother(ctx, healthAddress) {
		r.Unknown = fmt.Errorf("%w on %s", ErrHealthOfAnother, healthAddress)
	}
	return r, nil
}

// findInNode finds the processes in /proc.
func (r *Running) findInNode() (node bool, err error) {
	here, err := markNetwork()
	if err != nil {
		return false, err
	}
	defer here.end()
	return r.findProcesses("/proc", here)
}

// findProcesses says whether it has seen all processes of the node: in the machine's first PID
// namespace, or in one that has a kubelet.
func (r *Running) findProcesses(proc string, here network) (node bool, err error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return false, fmt.Errorf("list processes: %w", err)
	}
	node = inInitialNamespace(proc) && seesInit(entries)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		args, err := arguments(dir, tellsOfKubeProxy)
		if err != nil && !here.lacks(proc, dir) {
			r.Unknown = fmt.Errorf("PID %d may be a kube-proxy: %w", pid, err)
		}
		if len(args) == 0 {
			continue
		}
		name := filepath.Base(strings.Fields(args[0] + " -")[0]) // k3s has its arguments in the first
		if name == "kubelet" {
			node = true
		}
		if here.lacks(proc, dir) {
			continue
		}
		switch {
		case isKubeProxy(name, args):
			r.PIDs = append(r.PIDs, pid)
		case embeds(name):
			node = true
			r.Unknown = fmt.Errorf("%s (PID %d) may have a kube-proxy inside", name, pid)
		}
	}
	return node, nil
}

// embeds says whether a program of that name may run kube-proxy as a part of itself: k3s by any version, as server or
// agent, kubelite of MicroK8s, and the node's part of OpenShift's SDN, of 4 and of 3.11.
func embeds(name string) bool {
	return name == "openshift" || hasPrefix(name, "k3s", "kubelite", "openshift-sdn")
}

func hasPrefix(name string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// seesInit says whether a list of processes has the first one. /proc hides it, and with it a kube-proxy,
// where it is mounted with hidepid=2 and the caller has fewer capabilities than they.
func seesInit(entries []fs.DirEntry) bool {
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "1" })
}

// tellsOfKubeProxy says whether a program of that name may have a kube-proxy inside, or tells of the node.
func tellsOfKubeProxy(name string) bool {
	return embeds(name) || hasPrefix(name, "kube-proxy", "hyperkube", "kubelet")
}

// arguments returns the command line of a process whose name tells; none of another one, of a thread of the kernel and
// of a process that has ended.
//
// It goes by the name in comm first: the kernel takes a lock of the process's memory to read the
// command line, and a process that holds it for ever would hold up the reader too.
func arguments(dir string, tells func(name string) bool) ([]string, error) {
	ended := func(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	if ended(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// A link to the program, or a title that it gave itself, does not change the name of its file.
	file, _ := os.Readlink(filepath.Join(dir, "exe"))
	byFile := tells(filepath.Base(file))
	if !byFile && !tells(strings.TrimSpace(string(comm))) {
		return nil, nil
	}
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if ended(err) || err == nil && len(cmdline) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	if byFile {
		args[0] = file
	}
	return args, nil
}

func inInitialNamespace(proc string) bool {
	var stat unix.Stat_t
	return unix.Stat(filepath.Join(proc, "self/ns/pid"), &stat) == nil && stat.Ino == initialPIDNamespace
}

// SeesNode says whether the caller sees the processes of the node, and not only those of a
// container.
func SeesNode() bool {
	node, err := new(Running).findInNode()
	return err == nil && node
}

// isKubeProxy goes by the command line: a container's binary may have any path.
func isKubeProxy(name string, args []string) bool {
	if strings.HasPrefix(name, "kube-proxy") {
		return !slices.Contains(args[1:], "--cleanup") && !slices.Contains(args[1:], "--cleanup=true")
	}
	return name == "hyperkube" && len(args) > 1 && (args[1] == "proxy" || args[1] == "kube-proxy")
}

// answersAsKubeProxy says whether the server at an address tells the mode of a kube-proxy.
func answersAsKubeProxy(ctx context.Context, address string) bool {
	mode, code := get(ctx, address, "/proxyMode")
	return code == http.StatusOK && slices.Contains([]string{"iptables", "ipvs", "nftables"},
		strings.TrimSpace(string(mode)))
}

// healthOfAnother says whether the server at an address answers as kube-proxy's health server does. Service proxies
// that stand for kube-proxy may answer so too.
func healthOfAnother(ctx context.Context, address string) bool {
	text, code := get(ctx, address, "/healthz")
	var times struct{ LastUpdated, CurrentTime *string }
	return (code == http.StatusOK || code == http.StatusServiceUnavailable) && json.Unmarshal(text, &times) == nil &&
		times.LastUpdated != nil && times.CurrentTime != nil
}

// AnswersAsOurs says whether the server at an address is an nftproxy's, with or without TLS. It asks for four seconds
// at most.
func AnswersAsOurs(ctx context.Context, address string) bool {
	return slices.ContainsFunc([]string{"http", "https"}, func(scheme string) bool {
		_, _, server := ask(ctx, scheme+"://"+address+"/healthz")
		return server == ServerHeader
	})
}

// get asks a server that is no nftproxy's. The code is 0 if there is none.
func get(ctx context.Context, address, path string) (text []byte, code int) {
	text, code, server := ask(ctx, "http://"+address+path)
	if server == ServerHeader {
		return nil, 0
	}
	return text, code
}

// ask asks a server, for two seconds at most, and returns the beginning of the answer and what the server calls itself.
// The code is 0 if there is no answer. Any certificate will do: the request tells the server nothing.
func ask(ctx context.Context, url string) (text []byte, code int, server string) {
	const patience, longest = 2 * time.Second, 1024
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, ""
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	response, err := client.Do(request)
	if err != nil {
		return nil, 0, ""
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(io.LimitReader(response.Body, longest)); err != nil {
		return nil, 0, ""
	}
	return text, response.StatusCode, response.Header.Get("Server")
}
