package metrics

import "github.com/prometheus/client_golang/prometheus"

// ConfigFile are the metrics about a configuration file that is followed. Its methods are safe for concurrent use.
type ConfigFile struct {
	valid, restart prometheus.Gauge
	changes        *prometheus.CounterVec
}

// NewConfigFile makes the metrics and registers them. Only a proxy with a configuration
// file has them. The file counts as valid: the proxy has started with it.
func NewConfigFile(r prometheus.Registerer) *ConfigFile {
	f := newFactory(r)
	m := &ConfigFile{
		valid: f.gauge("nftproxy_config_file_valid",
			"1 if the configuration file can be used; 0 if the settings from before its last change remain."),
		restart: f.gauge("nftproxy_config_file_restart_required",
			"1 if the configuration file has changed in fields that take effect at the next start only, else 0."),
		changes: f.counters("nftproxy_config_file_changes_total", []string{"result"},
			"Changes of the configuration file's text, by whether it could be used."),
	}
	m.valid.Set(1)
	m.changes.WithLabelValues("accepted").Add(0)
	m.changes.WithLabelValues("rejected").Add(0)
	return m
}

// Accept counts a change. restart says that the file has fields that are not in force.
func (m *ConfigFile) Accept(restart bool) {
	m.changes.WithLabelValues("accepted").Inc()
	m.valid.Set(1)
	m.restart.Set(one(restart))
}

// Reject counts a change to a file that cannot be used.
func (m *ConfigFile) Reject() {
	m.changes.WithLabelValues("rejected").Inc()
	m.valid.Set(0)
}
