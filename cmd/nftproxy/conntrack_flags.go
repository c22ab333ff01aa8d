package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"nftproxy/conntrack"
	"nftproxy/model/service"
)

// sysctlOptions are the flags about the kernel's settings of connection tracking.
// The commands run and conntrack sysctl have them.
type sysctlOptions struct {
	conntrack.Sysctls
	dir string
}

// addFlags adds the flags. All but the directory have kube-proxy's names and defaults.
func (o *sysctlOptions) addFlags(f *pflag.FlagSet) {
	o.Sysctls = conntrack.DefaultSysctls()
	f.IntVar(&o.MaxPerCore, "conntrack-max-per-core", o.MaxPerCore, "entries that the conntrack table must have room for, for each CPU; a larger table stays as it is; 0 leaves its size alone, whatever --conntrack-min says")
	f.IntVar(&o.Min, "conntrack-min", o.Min, "entries that the conntrack table must have room for, even if --conntrack-max-per-core asks for fewer")
	f.DurationVar(&o.TCPEstablished, "conntrack-tcp-timeout-established", o.TCPEstablished, "how long the kernel tracks idle TCP connections; 0 leaves the setting alone")
	f.DurationVar(&o.TCPCloseWait, "conntrack-tcp-timeout-close-wait", o.TCPCloseWait, "how long the kernel tracks idle TCP connections in state CLOSE_WAIT; 0 leaves the setting alone")
	f.BoolVar(&o.BeLiberal, "conntrack-tcp-be-liberal", o.BeLiberal, "let the kernel count TCP packets outside of the window as part of their connection (nf_conntrack_tcp_be_liberal=1)")
	f.DurationVar(&o.UDP, "conntrack-udp-timeout", o.UDP, "how long the kernel tracks idle UDP flows; 0 leaves the setting alone")
	f.DurationVar(&o.UDPStream, "conntrack-udp-timeout-stream", o.UDPStream, "how long the kernel tracks idle UDP flows with packets in both directions; 0 leaves the setting alone")
	f.StringVar(&o.dir, ownPrefix+"conntrack-sysctl-dir", conntrack.DefaultSettingsDir, "directory where the host's /proc/sys/net/netfilter can be written; the /proc/sys of a container is usually read-only")
}

// check refuses the values that kube-proxy refuses.
func (o *sysctlOptions) check() error {
	var errs []error
	for _, c := range []struct {
		flag  string
		value int
	}{{"--conntrack-max-per-core", o.MaxPerCore}, {"--conntrack-min", o.Min}} {
		if c.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %d is negative", c.flag, c.value))
		}
	}
	for _, c := range []struct {
		flag  string
		value time.Duration
	}{
		{"--conntrack-tcp-timeout-established", o.TCPEstablished}, {"--conntrack-tcp-timeout-close-wait", o.TCPCloseWait},
		{"--conntrack-udp-timeout", o.UDP}, {"--conntrack-udp-timeout-stream", o.UDPStream},
	} {
		if c.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %s is negative", c.flag, c.value))
		}
	}
	return errors.Join(errs...)
}

func (o *sysctlOptions) files() conntrack.Files { return conntrack.Files{Settings: o.dir} }

// cleanEstablishedFlag is the name of the flag with the protocols whose established
// connections are stale too when their endpoint is gone.
const cleanEstablishedFlag = ownPrefix + "conntrack-clean-established"

func addCleanEstablished(f *pflag.FlagSet, protocols *[]string) {
	f.StringSliceVar(protocols, cleanEstablishedFlag, nil, "protocols (tcp, sctp) whose established connections are removed from conntrack too when their endpoint is gone")
}

// cleanEstablished parses the flag's value. UDP is no valid word: a UDP flow has no
// connection, and is always stale when its endpoint is gone.
func cleanEstablished(words []string) ([]service.Protocol, error) {
	var list []service.Protocol
	for _, word := range words {
		p, err := service.ParseProtocol(word)
		if err != nil || p == service.UDP {
			return nil, fmt.Errorf("--%s: %q: want tcp or sctp", cleanEstablishedFlag, word)
		}
		if !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list, nil
}
