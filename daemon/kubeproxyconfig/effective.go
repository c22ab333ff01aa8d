package kubeproxyconfig

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Effective is the configuration that is in force, as kube-proxy would write it: the
// values of nftproxy's flags, and kube-proxy's defaults where nftproxy has no such
// setting. value returns a flag's value as text, and false if there is no such flag.
func Effective(value func(flag string) (string, bool)) (v1alpha1.KubeProxyConfiguration, error) {
	c := defaults()
	c.Mode = modeNFTables
	c.ClientConnection.QPS, c.ClientConnection.Burst = 0, 0 // The client has no limit.
	r := flagReader{value: value}
	r.text("kubeconfig", &c.ClientConnection.Kubeconfig)
	r.text("hostname-override", &c.HostnameOverride)
	r.text("healthz-bind-address", &c.HealthzBindAddress)
	r.text("metrics-bind-address", &c.MetricsBindAddress)
	r.text("cluster-cidr", &c.ClusterCIDR)
	r.text("detect-local-mode", (*string)(&c.DetectLocalMode))
	r.text("pod-bridge-interface", &c.DetectLocal.BridgeInterface)
	r.text("pod-interface-name-prefix", &c.DetectLocal.InterfaceNamePrefix)
	r.list("nodeport-addresses", &c.NodePortAddresses)
	r.text("logging-format", &c.Logging.Format)
	c.Logging.Verbosity = v1.VerbosityLevel(max(0, r.number("v")))
	c.EnableProfiling = r.yes("profiling")
	c.BindAddressHardFail = r.yes("bind-address-hard-fail")
	r.optional("oom-score-adj", &c.OOMScoreAdj)
	r.optional("conntrack-max-per-core", &c.Conntrack.MaxPerCore)
	r.optional("conntrack-min", &c.Conntrack.Min)
	c.Conntrack.TCPEstablishedTimeout = &metav1.Duration{Duration: r.duration("conntrack-tcp-timeout-established")}
	c.Conntrack.TCPCloseWaitTimeout = &metav1.Duration{Duration: r.duration("conntrack-tcp-timeout-close-wait")}
	c.Conntrack.TCPBeLiberal = r.yes("conntrack-tcp-be-liberal")
	c.Conntrack.UDPTimeout.Duration = r.duration("conntrack-udp-timeout")
	c.Conntrack.UDPStreamTimeout.Duration = r.duration("conntrack-udp-timeout-stream")
	r.list("ipvs-exclude-cidrs", &c.IPVS.ExcludeCIDRs)
	c.NFTables.MasqueradeAll = r.yes("masquerade-all")
	if r.number("iptables-masquerade-bit") >= 0 {
		r.optional("iptables-masquerade-bit", &c.NFTables.MasqueradeBit)
	}
	c.NFTables.MinSyncPeriod.Duration = r.duration("iptables-min-sync-period")
	return c, errors.Join(r.errs...)
}

// flagReader reads flags into the types of the configuration, and collects the errors.
type flagReader struct {
	value func(string) (string, bool)
	errs  []error
}

// get returns an empty text for a flag that is not there, which is an error.
func (r *flagReader) get(flag string) string {
	text, ok := r.value(flag)
	if !ok {
		r.errs = append(r.errs, fmt.Errorf("--%s: there is no such flag", flag))
	}
	return text
}

func (r *flagReader) check(flag string, err error) {
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("--%s: %w", flag, err))
	}
}

func (r *flagReader) text(flag string, to *string) { *to = r.get(flag) }

// list reads a list as the flag's type prints it: [a,b].
func (r *flagReader) list(flag string, to *[]string) {
	*to = nil
	if text := strings.Trim(r.get(flag), "[]"); text != "" {
		*to = strings.Split(text, ",")
	}
}

// number is 0 for an empty text.
func (r *flagReader) number(flag string) int32 {
	text := r.get(flag)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 32)
	r.check(flag, err)
	return int32(n)
}

// optional leaves the default for an empty text.
func (r *flagReader) optional(flag string, to **int32) {
	if text, _ := r.value(flag); text != "" {
		n := r.number(flag)
		*to = &n
	}
}

func (r *flagReader) yes(flag string) bool {
	yes, err := strconv.ParseBool(r.get(flag))
	r.check(flag, err)
	return yes
}

func (r *flagReader) duration(flag string) time.Duration {
	d, err := time.ParseDuration(r.get(flag))
	r.check(flag, err)
	return d
}
