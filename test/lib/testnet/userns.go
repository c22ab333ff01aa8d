package testnet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// marker is the environment variable that the second run of a program carries,
// so that there is no third.
const marker = "NFTPROXY_USERNS"

// Reexec makes sure that the program may create network namespaces, also for an ordinary user. If it may
// (CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW are effective), Reexec returns
// done=false at once.
//
// If not, it runs the same executable with the same arguments, environment and
// standard streams as root of new user, network and mount namespaces, waits,
// and returns done=true and its exit code (128 plus the signal that ended it);
// the caller then exits with that code. Nothing outside that user namespace is granted: no access to the
// network namespace, files or devices of the machine. SIGINT, SIGTERM and SIGHUP are passed
// on. On a terminal's Ctrl-C the second run gets SIGINT twice, once from the
// terminal. It is killed when the first run dies.
//
// Call it first thing, before goroutines, files and signal handlers are made.
func Reexec() (code int, done bool, err error) {
	permitted, err := mayMakeNamespaces()
	if err != nil || permitted {
		return 0, false, err
	}
	if os.Getenv(marker) != "" {
		return 0, false, errors.New("no permission to make network namespaces, not even as root of a user namespace")
	}
	cmd := command()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)

	// The parent whose death kills the child is the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 0, false, fmt.Errorf("run in a user namespace: %w%s", err, hint(err))
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // it may have just exited: then Wait tells
		case err := <-exited:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return 0, false, fmt.Errorf("wait for the run in a user namespace: %w", err)
			}
			return exitCode(cmd.ProcessState), true, nil
		}
	}
}

// Main is TestMain for packages whose tests make network namespaces, with their
// testing.M: an ordinary user's run is the same as root's, where that may have
// user namespaces. It does not return.
func Main(m interface{ Run() int }) {
	code, done, err := Reexec()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tests that need namespaces will be skipped:", err)
	}
	if !done {
		code = m.Run()
	}
	os.Exit(code)
}

func command() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// The network namespace is the one that threads return to: setns back
		// into the machine's own would not be permitted.
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   unix.SIGKILL,
	}
	return cmd
}

func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// mayMakeNamespaces tells whether the capabilities that this package uses are
// effective.
func mayMakeNamespaces() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // 64 capabilities
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("read capabilities: %w", err)
	}
	for _, c := range []int{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW} {
		if data[c/32].Effective&(1<<(c%32)) == 0 {
			return false, nil
		}
	}
	return true, nil
}

// hint says what may be in the way of user namespaces.
func hint(err error) string {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return " (user namespaces may be restricted by sysctl kernel.unprivileged_userns_clone, " +
			"kernel.apparmor_restrict_unprivileged_userns or a container's seccomp profile; run as root instead)"
	case errors.Is(err, unix.ENOSPC):
		return " (sysctl user.max_user_namespaces may be 0; run as root instead)"
	}
	return ""
}
