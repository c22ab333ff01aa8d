package process_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/daemon/process"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/testnet"
)

// TestLimit: what is left to all threads of a process, and to a program that it starts, by what the process
// started with.
func TestLimit(t *testing.T) {
	testnet.SkipUnwanted(t)
	if os.Getuid() != 0 {
		testnet.Require(t, unix.EPERM)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "limited")
	if err := child.Build(program, "../..", "./daemon/process/testdata/limited"); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} { // other users start the program too
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	all, err := process.OwnCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	admin, both := process.CapabilitiesOf(unix.CAP_NET_ADMIN), process.CapabilitiesOf(unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE)
	state := func(permitted, bounding process.Capabilities) process.CapabilityState {
		return process.CapabilityState{Permitted: permitted, Effective: permitted, Bounding: bounding, NoNewPrivileges: true}
	}
	without := all.Bounding.Without(process.CapabilitiesOf(unix.CAP_SETPCAP))
	const nobody = "--reuid=65534 --regid=65534 --clear-groups"
	const noMore = "--no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set="
	for name, c := range map[string]struct {
		// started is how setpriv(1) starts the process; empty for the rights of the test.
		started           string
		threads, children process.CapabilityState
	}{
		"root": {"", state(both, both), state(0, both)},
		// It may not set the securebits, so programs that it starts as root have what the container has.
		"a container's root":                     {noMore + "-all,+net_admin", state(admin, admin), state(admin, admin)},
		"a container with more":                  {noMore + "-all,+net_admin,+net_raw,+setpcap", state(admin, admin), state(0, admin)},
		"root that may not set the bounding set": {"--bounding-set=-setpcap", state(both, without), state(both, without)},
		"a user with the capability":             {nobody + " --inh-caps=+net_admin --ambient-caps=+net_admin", state(admin, all.Bounding), state(0, all.Bounding)},
		"a user without":                         {nobody, state(0, all.Bounding), state(0, all.Bounding)},
	} {
		t.Run(name, func(t *testing.T) {
			command := []string{program, fmt.Sprint(unix.CAP_NET_ADMIN), fmt.Sprint(unix.CAP_NET_BIND_SERVICE)}
			if c.started != "" {
				command = append(append([]string{"setpriv"}, strings.Fields(c.started)...), command...)
			}
			cmd := exec.Command(command[0], command[1:]...)
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %s", err, errs.String())
			}
			lists := json.NewDecoder(&out)
			for _, want := range []process.CapabilityState{c.threads, c.children} {
				var got []process.CapabilityState
				if err := lists.Decode(&got); err != nil || len(got) == 0 {
					t.Fatalf("%d states: %v", len(got), err)
				}
				for _, s := range got {
					if s != want {
						t.Errorf("one of %d threads has %+v, want %+v", len(got), s, want)
					}
				}
			}
			if rest, err := io.ReadAll(lists.Buffered()); err != nil || strings.TrimSpace(string(rest)) != "" {
				t.Errorf("more output: %q, %v", rest, err)
			}
		})
	}
}
