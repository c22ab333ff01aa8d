package kubeproxyconfig

import (
	"maps"
	"slices"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"nftproxy/model/spelling"
)

// GateExternalIPs is the one feature gate of kube-proxy that has a meaning here
// (KEP-5707): whether spec.externalIPs are served.
const GateExternalIPs = "AllowServiceExternalIPs"

// NoSuchGate says why another gate has no effect. Who has mistyped the one that has is told so: external IPs that were
// to be refused are served.
func NoSuchGate(gate string) string {
	const text = "nftproxy has no such gate"
	if meant := spelling.Nearest(gate, []string{GateExternalIPs}); meant != "" {
		return text + "; did you mean " + meant + "?"
	}
	return text
}

// noEffect stands between a field and the reason why it has none.
const noEffect = " has no effect: "

// noteTo returns a function that adds a note for a field that is set.
func noteTo(notes *[]string) func(set bool, field, reason string) {
	return func(set bool, field, reason string) {
		if set {
			*notes = append(*notes, field+noEffect+reason)
		}
	}
}

// ignored lists the fields that are set to something and have no effect, each
// with the reason. Fields of the modes that the file does not choose are left
// out: they have no effect in kube-proxy either.
func ignored(c *v1alpha1.KubeProxyConfiguration) []string {
	var notes []string
	note := noteTo(&notes)
	note(c.Mode != modeNFTables && c.Mode != "", "mode: "+string(c.Mode), "nftproxy always programs nftables; the mode "+
		"says what other fields mean")
	for _, gate := range slices.Sorted(maps.Keys(c.FeatureGates)) {
		note(gate != GateExternalIPs, "featureGates."+gate, NoSuchGate(gate))
	}
	const protobuf = "nftproxy asks for protobuf"
	client := c.ClientConnection
	note(client.AcceptContentTypes != "", "clientConnection.acceptContentTypes", protobuf)
	note(client.ContentType != "" && client.ContentType != "application/vnd.kubernetes.protobuf",
		"clientConnection.contentType", protobuf)
	const unlimited = "nftproxy sends a handful of requests and has no limit of its own"
	note(client.QPS != 0, "clientConnection.qps", unlimited)
	note(client.Burst != 0, "clientConnection.burst", unlimited)
	flush := c.Logging.FlushFrequency.Duration.Duration
	note(flush != 0 && flush != 5*time.Second, "logging.flushFrequency", "nftproxy writes each line at once")
	text, json := c.Logging.Options.Text, c.Logging.Options.JSON
	note(text.SplitStream || text.InfoBufferSize.Value() != 0 || json.SplitStream || json.InfoBufferSize.Value() != 0,
		"logging.options", "nftproxy has one stream for its log")
	note(len(c.Logging.VModule) > 0, "logging.vmodule", "nftproxy has one verbosity for all of its log")
	note(c.ShowHiddenMetricsForVersion != "", "showHiddenMetricsForVersion", "nftproxy hides no metrics")
	note(c.ConfigSyncPeriod.Duration != 0 && c.ConfigSyncPeriod.Duration != 15*time.Minute, "configSyncPeriod",
		"nftproxy gets each change from its watches")
	note(c.PortRange != "", "portRange", "kube-proxy ignores it too")
	note(c.WindowsRunAsService, "windowsRunAsService", "it is for Windows")
	note(c.Winkernel != v1alpha1.KubeProxyWinkernelConfiguration{}, "winkernel", "it is for Windows")
	return append(notes, ignoredOfMode(c)...)
}

// ignoredOfMode lists the fields without effect of the section that the file's
// mode chooses.
func ignoredOfMode(c *v1alpha1.KubeProxyConfiguration) []string {
	var notes []string
	note := noteTo(&notes)
	const events = "nftproxy follows changes and repairs what others change"
	switch section(c) {
	case modeNFTables:
		note(c.NFTables.SyncPeriod.Duration != 0, "nftables.syncPeriod", events)
		note(forSlowWrites(c.NFTables.MinSyncPeriod.Duration), "nftables.minSyncPeriod",
			forSlow+"; less than 1 s and more than 10 s do")
	case modeIPTables:
		note(c.IPTables.SyncPeriod.Duration != 0, "iptables.syncPeriod", events)
		note(c.IPTables.MinSyncPeriod.Duration != 0, "iptables.minSyncPeriod", otherMode)
		local := c.IPTables.LocalhostNodePorts
		note(local != nil && !*local && slices.ContainsFunc(c.NodePortAddresses, isLoopback), "iptables.localhostNodePorts",
			"nodePortAddresses names loopback addresses, so 127.0.0.1 serves node ports; leave them out there")
	case modeIPVS:
		i := c.IPVS
		note(i.SyncPeriod.Duration != 0, "ipvs.syncPeriod", events)
		note(i.MinSyncPeriod.Duration != 0, "ipvs.minSyncPeriod", otherMode)
		if text := SchedulerNote("ipvs.scheduler", i.Scheduler); text != "" {
			notes = append(notes, text)
		}
		note(i.StrictARP, "ipvs.strictARP", NoteStrictARP)
		note(i.TCPTimeout.Duration != 0, "ipvs.tcpTimeout", NoteTCPTimeout)
		note(i.TCPFinTimeout.Duration != 0, "ipvs.tcpFinTimeout", NoteTCPFinTimeout)
		note(i.UDPTimeout.Duration != 0, "ipvs.udpTimeout", NoteUDPTimeout)
	}
	return notes
}

// What a minSyncPeriod without effect means. kube-proxy's writes are slow in its iptables and ipvs modes, and operators
// raise the period there. 1 s is its default in nftables mode, which tools write into files.
const (
	forSlow   = "1 s to 10 s space kube-proxy's slow writes, and nftproxy's take milliseconds"
	otherMode = "it spaces kube-proxy's slow writes of that mode, and nftproxy's take milliseconds; mode: nftables with " +
		"nftables.minSyncPeriod of less than 1 s or more than 10 s sets a period here"
)

// forSlowWrites says that a period was meant for writes that take seconds.
func forSlowWrites(d time.Duration) bool { return d >= time.Second && d <= 10*time.Second }
