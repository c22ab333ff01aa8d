package kubeproxyconfig

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"nftproxy/model/spelling"
)

const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"

	healthzPort = 10256
	metricsPort = 10249
)

// The modes of kube-proxy on Linux. An empty mode is iptables (kube-proxy 1.36).
const (
	modeIPTables = "iptables"
	modeIPVS     = "ipvs"
	modeNFTables = "nftables"
)

// File is a configuration file that was read, with the addresses of the servers completed.
type File struct {
	fields
	// Mistakes lists fields that do not exist, or stand twice.
	Mistakes []string
	// Notes lists facts for the operator, in the order of the file's type: fields without
	// effect here.
	Notes []string
}

// fields are those that a file may have.
type fields struct {
	v1alpha1.KubeProxyConfiguration `json:",inline"`
	// NoMasqueradeCIDRs is a field that kube-proxy is to have (KEP-6246).
	NoMasqueradeCIDRs []string `json:"noMasqueradeCIDRs"`
	// MetricsServerTLS and HealthzServerTLS are fields that KEP-6038 proposes.
	MetricsServerTLS ServerTLS `json:"metricsServerTLS"`
	HealthzServerTLS ServerTLS `json:"healthzServerTLS"`
}

// ServerTLS says whether a server serves HTTPS.
type ServerTLS struct {
	Enable   bool   `json:"enable"`
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
}

// serverTLS is a field with the beginning of its flags.
type serverTLS struct {
	ServerTLS
	field, flag string
}

func (f *File) tls() []serverTLS {
	return []serverTLS{
		{f.MetricsServerTLS, "metricsServerTLS", "nftproxy-metrics-tls"},
		{f.HealthzServerTLS, "healthzServerTLS", "nftproxy-healthz-tls"},
	}
}

// checkTLS wants both files where TLS is enabled. Files without it have no effect.
func (f *File) checkTLS() error {
	var errs []error
	note := noteTo(&f.Notes)
	for _, t := range f.tls() {
		for _, file := range [][2]string{{".certFile", t.CertFile}, {".keyFile", t.KeyFile}} {
			if t.Enable && file[1] == "" {
				errs = append(errs, fmt.Errorf("%s%s: \"\": want a path, since %s.enable is true", t.field, file[0], t.field))
			}
			note(!t.Enable && file[1] != "", t.field+file[0], t.field+".enable is not true")
		}
	}
	return errors.Join(errs...)
}

// wrongTypes returns an error for each field below the path whose value cannot be decoded. It decodes each by itself,
// since the decoder's errors end at the first one, and those about times name no field.
func wrongTypes(path []string, value json.RawMessage) (errs []error) {
	var below map[string]json.RawMessage
	if json.Unmarshal(value, &below) == nil {
		for _, name := range slices.Sorted(maps.Keys(below)) {
			errs = append(errs, wrongTypes(append(path[:len(path):len(path)], name), below[name])...)
		}
	}
	if len(errs) > 0 {
		return errs
	}
	alone := value
	for _, name := range slices.Backward(path) {
		alone = fmt.Appendf(nil, "{%q: %s}", name, alone)
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(alone, new(fields)); err != nil {
		return []error{fmt.Errorf("%s: %s: %w", strings.Join(path, "."), value, err)}
	}
	return nil
}

// Parse reads a file in YAML or JSON. An unknown or repeated field is a mistake and
// no error, as with kube-proxy, which then decodes leniently (loadConfig in cmd/kube-proxy/app/options.go). The error
// joins one error for each bad field; with these the file is there too, so that its other fields can be judged.
func Parse(text []byte) (*File, error) {
	f := &File{}
	document, strictErr := yaml.YAMLToJSONStrict(text)
	if strictErr != nil {
		var err error
		if document, err = yaml.YAMLToJSON(text); err != nil {
			return nil, fmt.Errorf("not YAML: %w", err)
		}
		f.Mistakes = append(f.Mistakes, fmt.Sprintf("%v; the last one counts", strictErr))
	}
	if n := documents(text); n > 1 {
		f.Mistakes = append(f.Mistakes, fmt.Sprintf("%d documents in one file: the first one counts", n))
	}
	unknown, err := kjson.UnmarshalStrict(document, &f.fields)
	if err != nil {
		return nil, errors.Join(wrongTypes(nil, document)...)
	}
	if got := f.APIVersion; got != apiVersion {
		return nil, fmt.Errorf("apiVersion: %q: want %s", got, apiVersion)
	}
	if got := f.Kind; got != kind {
		return nil, fmt.Errorf("kind: %q: want %s", got, kind)
	}
	for _, u := range unknown {
		f.Mistakes = append(f.Mistakes, unknownField(u, reflect.TypeFor[fields]()))
	}
	f.Notes = append(f.Notes, ignored(&f.KubeProxyConfiguration)...)
	bad := errors.Join(check(&f.KubeProxyConfiguration), f.checkTLS())
	setDefaults(&f.KubeProxyConfiguration)
	return f, bad
}

// documents counts those of the file that are not empty. The decoder, and kube-proxy's, reads the first one only.
func documents(text []byte) (n int) {
	for document := range strings.SplitSeq("\n"+string(text), "\n---") {
		var any any
		if err := yaml.Unmarshal([]byte(document), &any); err != nil || any != nil {
			n++
		}
	}
	return n
}

// check judges the fields that no flag of nftproxy judges.
func check(c *v1alpha1.KubeProxyConfiguration) error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("%s: %v: want %s", field, value, want))
	}
	if !IsMode(string(c.Mode)) {
		meant := spelling.DidYouMean(string(c.Mode), []string{modeIPTables, modeIPVS, modeNFTables})
		errs = append(errs, fmt.Errorf("mode: %q: %swant iptables, ipvs, nftables or nothing", c.Mode, meant))
	}
	if b := c.ClientConnection.Burst; b < 0 {
		bad("clientConnection.burst", b, "0 or more")
	}
	if d := c.ConfigSyncPeriod.Duration; d < 0 {
		bad("configSyncPeriod", d, "more than 0")
	}
	if a := c.BindAddress; a != "" {
		if _, err := netip.ParseAddr(a); err != nil {
			bad("bindAddress", strconv.Quote(a), "an IP address")
		}
	}
	for i, a := range c.NodePortAddresses {
		if a == "" {
			bad(fmt.Sprintf("nodePortAddresses[%d]", i), `""`, "primary, all, localhost or a CIDR")
		}
	}
	for _, p := range []struct {
		field     string
		sync, min metav1.Duration
	}{
		{modeIPTables, c.IPTables.SyncPeriod, c.IPTables.MinSyncPeriod},
		{modeIPVS, c.IPVS.SyncPeriod, c.IPVS.MinSyncPeriod},
		{modeNFTables, c.NFTables.SyncPeriod, c.NFTables.MinSyncPeriod},
	} {
		if p.sync.Duration < 0 {
			bad(p.field+".syncPeriod", p.sync.Duration, "more than 0")
		}
		if flag := section(c) == modeNFTables && p.field == modeNFTables; !flag && p.min.Duration < 0 {
			bad(p.field+".minSyncPeriod", p.min.Duration, "0 or more")
		}
	}
	return errors.Join(errs...)
}

// section is the field with the settings of the file's mode. kube-proxy takes
// masqueradeAll and masqueradeBit of ipvs mode from iptables.
func section(c *v1alpha1.KubeProxyConfiguration) string {
	switch c.Mode {
	case modeIPVS, modeNFTables:
		return string(c.Mode)
	}
	return modeIPTables
}

// IsMode says whether kube-proxy on Linux has the mode; an empty one is its default.
func IsMode(mode string) bool {
	return slices.Contains([]string{"", modeIPTables, modeIPVS, modeNFTables}, mode)
}

// setDefaults completes the addresses of the servers, whose defaults depend on
// bindAddress. The defaults of all other fields are those of nftproxy's flags.
func setDefaults(c *v1alpha1.KubeProxyConfiguration) {
	healthz, metrics := ServerAddresses(c.BindAddress)
	c.HealthzBindAddress = WithPort(cmp.Or(c.HealthzBindAddress, healthz), healthzPort)
	c.MetricsBindAddress = WithPort(cmp.Or(c.MetricsBindAddress, metrics), metricsPort)
}

// ServerAddresses returns the addresses and ports of the health and metrics servers
// that kube-proxy takes by default, of the family of its bind address.
func ServerAddresses(bindAddress string) (healthz, metrics string) {
	every, loopback := "0.0.0.0", "127.0.0.1"
	if a, err := netip.ParseAddr(bindAddress); err == nil && a.Unmap().Is6() {
		every, loopback = "::", "::1"
	}
	return WithPort(every, healthzPort), WithPort(loopback, metricsPort)
}

// WithPort adds the port to an IP address without one, as kube-proxy does. Any
// other text stays as it is.
func WithPort(address string, port int) string {
	if a, err := netip.ParseAddr(strings.Trim(address, "[]")); err == nil {
		return net.JoinHostPort(a.String(), strconv.Itoa(port))
	}
	return address
}
