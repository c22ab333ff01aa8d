package process_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	program := buildLimited(t)
	all, err := process.OwnCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	admin, both := process.CapabilitiesOf(unix.CAP_NET_ADMIN), process.CapabilitiesOf(unix.CAP_NET_ADMIN,
		unix.CAP_NET_BIND_SERVICE)
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
		"a container's root": {noMore + "-all,+net_admin", state(admin, admin), state(admin, admin)},
		"a container with more": {noMore + "-all,+net_admin,+net_raw,+setpcap", state(admin, admin),
			state(0, admin)},
		"root that may not set the bounding set": {"--bounding-set=-setpcap", state(both, without), state(both, without)},
		"a user with the capability": {nobody + " --inh-caps=+net_admin --ambient-caps=+net_admin",
			state(admin, all.Bounding), state(0, all.Bounding)},
		"a user without": {nobody, state(0, all.Bounding), state(0, all.Bounding)},
	} {
		t.Run(name, func(t *testing.T) {
			threads, children := limit(t, program, c.started)
			if want := []process.CapabilityState{c.threads}; !slices.Equal(threads, want) {
				t.Errorf("the threads have %+v, want %+v", threads, want)
			}
			if want := []process.CapabilityState{c.children}; !slices.Equal(children, want) {
				t.Errorf("a new program has %+v, want %+v", children, want)
			}
		})
	}
}

// TestFileCapability: a user other than root has the capability by that of the binary in the image, if the container
// has it, also under no_new_privs. Without it in the container the binary starts nevertheless.
func TestFileCapability(t *testing.T) {
	testnet.SkipUnwanted(t)
	program := buildLimited(t)
	// struct vfs_cap_data: revision 2, and NET_ADMIN permitted, not effective.
	value := binary.LittleEndian.AppendUint32(nil, 0x02000000)
	value = append(binary.LittleEndian.AppendUint32(value, 1<<unix.CAP_NET_ADMIN), make([]byte, 12)...)
	if err := unix.Setxattr(program, "security.capability", value, 0); err != nil {
		t.Fatal(err)
	}
	// Before it starts the program, the runtime has the container's capabilities as that user.
	const user = "--no-new-privs --reuid=65532 --regid=0 --clear-groups "
	admin := process.CapabilitiesOf(unix.CAP_NET_ADMIN)
	for name, c := range map[string]struct {
		started string
		want    process.CapabilityState
	}{
		"with it": {user + "--inh-caps=-all,+net_admin --ambient-caps=-all,+net_admin " +
			"--bounding-set=-all,+net_admin", process.CapabilityState{Permitted: admin, Effective: admin, Bounding: admin,
			NoNewPrivileges: true}},
		"for root only (Docker)": {user + "--bounding-set=-all,+net_admin setpriv --no-new-privs",
			process.CapabilityState{Bounding: admin, NoNewPrivileges: true}},
		"without": {user + "--inh-caps=-all --ambient-caps=-all --bounding-set=-all",
			process.CapabilityState{NoNewPrivileges: true}},
	} {
		t.Run(name, func(t *testing.T) {
			threads, _ := limit(t, program, c.started)
			if want := []process.CapabilityState{c.want}; !slices.Equal(threads, want) {
				t.Errorf("the threads have %+v, want %+v", threads, want)
			}
		})
	}
}

// buildLimited builds testdata/limited where every user can start it.
func buildLimited(t *testing.T) string {
	t.Helper()
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
	return program
}

// limit starts the program by setpriv(1) with some arguments; without any, with the rights of the test. It returns the
// different states of its threads, and those of a program that it starts.
func limit(t *testing.T, program, started string) (threads, children []process.CapabilityState) {
	t.Helper()
	command := []string{program, fmt.Sprint(unix.CAP_NET_ADMIN), fmt.Sprint(unix.CAP_NET_BIND_SERVICE)}
	if started != "" {
		command = append(append([]string{"setpriv"}, strings.Fields(started)...), command...)
	}
	cmd := exec.Command(command[0], command[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	lists := json.NewDecoder(&out)
	for _, states := range []*[]process.CapabilityState{&threads, &children} {
		var all []process.CapabilityState
		if err := lists.Decode(&all); err != nil || len(all) == 0 {
			t.Fatalf("%d states: %v", len(all), err)
		}
		for _, s := range all {
			if !slices.Contains(*states, s) {
				*states = append(*states, s)
			}
		}
	}
	if rest, err := io.ReadAll(lists.Buffered()); err != nil || strings.TrimSpace(string(rest)) != "" {
		t.Errorf("more output: %q, %v", rest, err)
	}
	return threads, children
}
