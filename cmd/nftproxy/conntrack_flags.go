package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"nftproxy/conntrack"
	"nftproxy/internal/service"
)

// sysctlOptions are the flags about the kernel's settings of connection
// tracking, of run and of the command that shows them.
type sysctlOptions struct {
	conntrack.Sysctls
	dir string
}

// addFlags has kube-proxy's names and defaults, but for the directory.
func (o *sysctlOptions) addFlags(f *pflag.FlagSet) {
	o.Sysctls = conntrack.DefaultSysctls()
	f.IntVar(&o.MaxPerCore, "conntrack-max-per-core", o.MaxPerCore, "entries that the conntrack table is to have room for, for each CPU; a larger table stays, and 0 leaves it as it is whatever --conntrack-min says")
	f.IntVar(&o.Min, "conntrack-min", o.Min, "entries that the conntrack table is to have room for at least, whatever --conntrack-max-per-core comes to")
	f.DurationVar(&o.TCPEstablished, "conntrack-tcp-timeout-established", o.TCPEstablished, "how long idle TCP connections are tracked; 0 leaves it as it is")
	f.DurationVar(&o.TCPCloseWait, "conntrack-tcp-timeout-close-wait", o.TCPCloseWait, "how long idle TCP connections in state CLOSE_WAIT are tracked; 0 leaves it as it is")
	f.BoolVar(&o.BeLiberal, "conntrack-tcp-be-liberal", o.BeLiberal, "have the kernel track TCP packets outside of the window too (nf_conntrack_tcp_be_liberal=1)")
	f.DurationVar(&o.UDP, "conntrack-udp-timeout", o.UDP, "how long idle UDP flows are tracked; 0 leaves it as it is")
	f.DurationVar(&o.UDPStream, "conntrack-udp-timeout-stream", o.UDPStream, "how long idle UDP flows with packets both ways are tracked; 0 leaves it as it is")
	f.StringVar(&o.dir, "conntrack-sysctl-dir", conntrack.DefaultSettingsDir, "where the host's /proc/sys/net/netfilter is found and can be written: containers have their own /proc/sys read-only as a rule")
}

// check refuses what kube-proxy refuses.
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

// cleanEstablishedFlag says whose established connections are removed from
// conntrack too once their endpoint has gone.
const cleanEstablishedFlag = "conntrack-clean-established"

func addCleanEstablished(f *pflag.FlagSet, protocols *[]string) {
	f.StringSliceVar(protocols, cleanEstablishedFlag, nil, "protocols, of tcp and sctp, whose established connections are removed from conntrack too once their endpoint has gone")
}

// cleanEstablished reads the flag's value. UDP has no connections: its flows
// always go.
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
