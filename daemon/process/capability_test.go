package process

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestParse: the states that the kernel shows.
func TestParse(t *testing.T) {
	const status = "Name:\tnftproxy\nCapInh:\t0000000000000000\nCapPrm:\t0000000000001400\nCapEff:\t0000000000001000\n" +
		"CapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000400\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	admin, bind := CapabilitiesOf(unix.CAP_NET_ADMIN), CapabilitiesOf(unix.CAP_NET_BIND_SERVICE)
	want := CapabilityState{Permitted: admin | bind, Effective: admin, Bounding: 1<<41 - 1, Ambient: bind,
		NoNewPrivileges: true}
	if got, err := parse(status); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", strings.Replace(status, "CapBnd", "CapNew", 1), strings.Replace(status, "1400",
		"14x0", 1)} {
		if got, err := parse(bad); err == nil {
			t.Errorf("parsed %q as %+v", bad, got)
		}
	}
}

// TestSteps: nothing is asked of the kernel that the process may not do, and nothing that is done already.
func TestSteps(t *testing.T) {
	admin, pcap := CapabilitiesOf(unix.CAP_NET_ADMIN), CapabilitiesOf(unix.CAP_SETPCAP)
	const capabilities, privileges = "set the capabilities", "set no_new_privs"
	for name, c := range map[string]struct {
		s    CapabilityState
		want []string
	}{
		"a container": {CapabilityState{Permitted: admin, Effective: admin, Bounding: admin, NoNewPrivileges: true},
			nil},
		"nothing":            {CapabilityState{Bounding: 1<<41 - 1, NoNewPrivileges: true}, nil},
		"escalation allowed": {CapabilityState{Permitted: admin, Effective: admin, Bounding: admin}, []string{privileges}},
		"without SETPCAP": {CapabilityState{Permitted: admin | 1, Effective: admin | 1, Bounding: admin | 1},
			[]string{capabilities, privileges}},
		"with SETPCAP": {
			CapabilityState{Permitted: admin | pcap, Effective: admin | pcap, Bounding: admin | pcap | 1},
			[]string{"drop capability 0 from the bounding set", "drop capability 8 from the bounding set", "set the securebits",
				capabilities, privileges},
		},
		"an unused SETPCAP": {CapabilityState{Permitted: admin | pcap, Effective: admin, Bounding: admin | pcap},
			[]string{capabilities, privileges}},
		"ambient": {
			CapabilityState{Permitted: admin, Effective: admin, Inheritable: admin, Ambient: admin, Bounding: 1<<41 - 1},
			[]string{"clear the ambient capabilities", capabilities, privileges},
		},
	} {
		var got []string
		for _, s := range steps(c.s, admin) {
			got = append(got, s.what)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestNames: the sets as the log has them.
func TestNames(t *testing.T) {
	for s, want := range map[Capabilities]string{
		0: "none", CapabilitiesOf(unix.CAP_NET_ADMIN): "NET_ADMIN", CapabilitiesOf(unix.CAP_NET_ADMIN,
			unix.CAP_NET_BIND_SERVICE, unix.CAP_BPF): "NET_BIND_SERVICE NET_ADMIN 39",
	} {
		if got := s.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
