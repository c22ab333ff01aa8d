package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"nftproxy/test/lib/child"
	"nftproxy/test/lib/testnet"
)

// machineConfig says how a machine is.
type machineConfig struct {
	// Name is the host name. Cgroup is the path of the machine's cgroup in every
	// hierarchy, such as /cluster/node-1; Start makes it.
	Name, Cgroup string
	// Dir takes all files of the machine that need a real file system, and the
	// logs of its services. Close leaves it.
	Dir string
	// Init is the command line that calls Init; Start adds the path of the
	// machine's description to it.
	Init []string
	// Disk lists the folders of the machine that are folders under Dir. All other
	// files that the machine writes are in memory.
	Disk []string
	// Binds are folders of this computer, by their paths in the machine.
	Binds map[string]string
	// Files are contents of files by their paths in the machine.
	Files map[string]string
	// Sysctls are contents by paths below /proc/sys. The machine sees files with
	// these contents there, and its writes do not reach the kernel.
	Sysctls map[string]string
	// Services run from the start, each with a log under Dir of its name.
	Services []machineService
}

// machineService is a program that runs for as long as the machine does.
type machineService struct {
	Name string
	// Args is the command line, with the absolute path of the program.
	Args []string
	Env  []string
}

// machine is a running machine. It ends at the latest when this process does.
type machine struct {
	NS     *testnet.Namespace
	config machineConfig
	init   *child.Process
}

// ready is the line by which Init says that the root file system is in place.
const ready = "machine is up"

// startMachine starts a machine on a network namespace, which the caller closes after
// the machine.
func startMachine(ctx context.Context, ns *testnet.Namespace, config machineConfig) (*machine, error) {
	m := &machine{NS: ns, config: config}
	if err := m.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start machine %s: %w", config.Name, err), m.Close())
	}
	return m, nil
}

func (m *machine) start(ctx context.Context) error {
	if err := makeCgroup(m.config.Cgroup); err != nil {
		return err
	}
	for _, dir := range append([]string{logs, rootDir, memoryDir}, m.config.Disk...) {
		if err := os.MkdirAll(filepath.Join(m.config.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	description, err := json.Marshal(m.config)
	if err != nil {
		return err
	}
	path := filepath.Join(m.config.Dir, "machine.json")
	if err := os.WriteFile(path, description, 0o600); err != nil {
		return err
	}
	args := append(m.config.Init[1:len(m.config.Init):len(m.config.Init)], path)
	cmd := exec.Command(m.config.Init[0], args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if m.init, err = child.Start(m.NS, cmd); err != nil {
		return err
	}
	if _, _, err := m.init.Await(ctx, 0, func(l child.Line) bool { return l.Text == ready }); err != nil {
		return fmt.Errorf("%w; it wrote:\n%s", err, m.init.Tail(20))
	}
	return nil
}

// LogPath is the file with the log of a service.
func (m *machine) LogPath(service string) string {
	return filepath.Join(m.config.Dir, logs, service+".log")
}

// Disk is where this computer has a folder of machineConfig.Disk.
func (m *machine) Disk(folder string) string { return filepath.Join(m.config.Dir, folder) }

// Command is a command that runs in the machine, for the caller to start.
func (m *machine) Command(ctx context.Context, args ...string) *exec.Cmd {
	pid := strconv.Itoa(m.init.PID())
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", pid, "--mount", "--uts", "--ipc", "--net",
		"--pid", "--"}, args...)...)
}

// Run runs a command in the machine. The error has what it wrote.
func (m *machine) Run(ctx context.Context, args ...string) error {
	out, err := m.Command(ctx, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s on %s: %w: %s", strings.Join(args, " "), m.config.Name, err, out)
	}
	return nil
}

// Tail is the end of what the machine itself has logged: the services that ended.
func (m *machine) Tail() string { return m.init.Tail(20) }

// Close ends all processes of the machine, as a power cut does, and removes its
// cgroups. A second Close does nothing.
func (m *machine) Close() error {
	var errs []error
	if m.init != nil {
		// The kernel ends all processes of a process namespace with the first of
		// them, before the parent learns of its end.
		errs = append(errs, m.init.Kill())
	}
	return errors.Join(append(errs, RemoveCgroup(m.config.Cgroup))...)
}
