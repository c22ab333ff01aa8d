package testnet_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// mode, in the environment, makes the test binary a program that calls Reexec
// and then does what the mode says.
const mode = "USERNS_TEST_MODE"

func TestMain(m *testing.M) {
	if os.Getenv(mode) == "" {
		testnet.Main(m)
	}
	code, done, err := testnet.Reexec()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(125)
	}
	if done {
		os.Exit(code)
	}
	os.Exit(inMode(os.Getenv(mode)))
}

func inMode(mode string) int {
	switch mode {
	case "describe":
		input, err := io.ReadAll(os.Stdin)
		netns, linkErr := os.Readlink("/proc/self/ns/net")
		fmt.Printf("uid %d, args %v, input %q, %v\n", os.Getuid(), os.Args[1:], input, errors.Join(err, linkErr))
		fmt.Println(netns)
		return 7
	case "signal":
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, unix.SIGTERM)
		fmt.Println("ready")
		<-signals
		return 8
	case "die":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
	return 126
}

// ordinary returns the test binary as a command of an ordinary user.
func ordinary(t *testing.T, mode string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "USERNS_TEST_MODE="+mode)
	cmd.Stderr = new(bytes.Buffer)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	return cmd
}

// checkExit judges how a command ended.
func checkExit(t *testing.T, cmd *exec.Cmd, err error, want int) {
	t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	code := cmd.ProcessState.ExitCode()
	if code == 125 && os.Getenv("CI") == "" && os.Getenv("REQUIRE_PRIVILEGED") == "" {
		t.Skipf("user namespaces are not permitted: %v", cmd.Stderr)
	}
	if code != want {
		t.Errorf("exit code %d, want %d; stderr: %v", code, want, cmd.Stderr)
	}
}

func TestReexec(t *testing.T) {
	if ordinaryAlready(t) {
		return
	}
	cmd := ordinary(t, "describe", "a", "b c")
	cmd.Stdin = strings.NewReader("typed")
	out, err := cmd.Output()
	checkExit(t, cmd, err, 7)
	netns, linkErr := os.Readlink("/proc/self/ns/net")
	if linkErr != nil {
		t.Fatal(linkErr)
	}
	said, in, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if want := `uid 0, args [a b c], input "typed", <nil>`; said != want {
		t.Errorf("said %s, want %s", said, want)
	}
	if in == netns || !strings.HasPrefix(in, "net:[") {
		t.Errorf("ran in network namespace %q, want one other than %q", in, netns)
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	if ordinaryAlready(t) {
		return
	}
	cmd := ordinary(t, "signal")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line == "ready\n" {
		if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	checkExit(t, cmd, cmd.Wait(), 8)
}

func TestDeathShows(t *testing.T) {
	if ordinaryAlready(t) {
		return
	}
	cmd := ordinary(t, "die")
	checkExit(t, cmd, cmd.Run(), 128+int(unix.SIGKILL))
}

func TestKilledWithItsParent(t *testing.T) {
	if ordinaryAlready(t) {
		return
	}
	cmd := ordinary(t, "signal")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(out)
	if line, _ := reader.ReadString('\n'); line != "ready\n" {
		checkExit(t, cmd, cmd.Wait(), 8)
		return
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The second run holds the pipe open until it is dead too.
	if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
		t.Errorf("then read %q, %v", rest, err)
	}
	_ = cmd.Wait() // reports the kill
}

func TestRootRunsOnce(t *testing.T) {
	if os.Getuid() != 0 {
		t.Log("not root: the other tests cover this user")
		return
	}
	cmd := ordinary(t, "describe")
	cmd.SysProcAttr.Credential = nil
	out, err := cmd.Output()
	checkExit(t, cmd, err, 7)
	netns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(strings.TrimSpace(string(out)), netns) {
		t.Errorf("said %q, want to stay in %s", out, netns)
	}
}
