package daemon

import (
	"log/slog"
	"net/netip"
	"time"

	"nftproxy/conntrack"
	"nftproxy/daemon/health"
	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// Config says what a run is to do. Flags and files have been read and checked.
type Config struct {
	Version string
	Node    string
	// Source has the objects. Objects says which of them count, and the bounds that they have.
	Source  watch.Source
	Objects watch.Options
	// RetainMissing is how long Services are served on that lists lack.
	RetainMissing time.Duration
	Rules         ruleset.Config
	// Eject says what is done about endpoints that do not answer, of Services that do not say it themselves.
	Eject service.Eject
	// DropInvalid drops forwarded packets that belong to no connection.
	DropInvalid bool
	// Established has the protocols of which even established connections are stale when their endpoint is gone.
	Established []service.Protocol
	// MinSyncPeriod is the least time between two syncs. Zero stands for our own default:
	// kube-proxy's second and kubeadm's 0s are for slower writes.
	MinSyncPeriod time.Duration
	// ExcludeIPVS has the ranges whose virtual servers of IPVS belong to other programs than kube-proxy.
	ExcludeIPVS []netip.Prefix
	// ConnectionMetrics also makes metrics of the connections that the rules count.
	ConnectionMetrics bool
	// The addresses of the servers; empty for none.
	HealthAddress, MetricsAddress, ProbeAddress string
	// The certificates of two of them.
	HealthTLS, MetricsTLS   health.Files
	BindHardFail, Profiling bool
	// StartupTaint is the key of the taint to remove from the Node; empty for none.
	StartupTaint string
	Sysctls      conntrack.Sysctls
	SysctlFiles  conntrack.Files
	OOMScoreAdj  string
	// LogFormat is one of package process, or empty.
	LogFormat string
	Verbosity int
	// Notes say what was given and has no effect, and Mistakes which fields of the configuration file do not exist.
	Notes, Mistakes []string
	// Flags has the values of all flags by name, and Origin the field of the configuration file that a flag's value is
	// from.
	Flags, Origin map[string]string
	// File is the configuration file, empty for none, and FileText what it had. Parse makes a configuration of
	// the same flags and another text of the file.
	File     string
	FileText []byte
	Parse    func(text []byte) (*Config, error)

	// Log is the log, and SetVerbosity changes how much it has. Parse sets neither.
	Log          *slog.Logger
	SetVerbosity func(int)
}

// beside says that this proxy does not serve the cluster's Services in kube-proxy's place: it has a name by which
// Services choose it, or only those of files.
func (c *Config) beside() bool { return c.Objects.ProxyName != "" || c.Source.Manifests != "" }

func (c *Config) loop() proxy.Config {
	config := proxy.DefaultConfig()
	if c.MinSyncPeriod > 0 {
		config.MinSyncPeriod = c.MinSyncPeriod
	}
	return config
}

// logNotes logs notes and mistakes once.
func (c *Config) logNotes() {
	logNotes(c.Log.With("file", c.File), c.Mistakes, nil)
	logNotes(c.Log, nil, c.Notes)
}

func logNotes(log *slog.Logger, mistakes, notes []string) {
	if len(mistakes) > 0 {
		log.Warn("the configuration file has mistakes: these fields count for nothing", "fields", mistakes)
	}
	if len(notes) > 0 {
		log.Warn("parts of the configuration have no effect", "notes", notes)
	}
}
