package daemon

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"nftproxy/daemon/metrics"
	"nftproxy/daemon/process"
	"nftproxy/daemon/proxy"
	"nftproxy/watch"
)

// ConfigFollower puts changes of the configuration file in force. It is not safe for concurrent use.
type ConfigFollower struct {
	reporter
	// started is the configuration of the start, now the one that the file last described.
	started, now *Config
	// text is the file as it was read last, or the error of reading it.
	text []byte
	// restart has the fields that differ from the start and count at the next start.
	restart []string
	// flags has the values of all flags that are in force.
	flags atomic.Pointer[map[string]string]

	// Counts are set before Run.
	Counts  *metrics.ConfigFile
	sysctls *Sysctls
	watcher *watch.Watcher
	loop    *proxy.Loop
}

// NewConfigFollower makes a follower of the file of a configuration, which is in force.
func NewConfigFollower(c Config, record func(watch.Event), s *Sysctls, w *watch.Watcher,
	loop *proxy.Loop) *ConfigFollower {
	f := &ConfigFollower{
		reporter: reporter{c.Log, c.Node, record}, started: &c, now: &c, text: c.FileText,
		sysctls: s, watcher: w, loop: loop,
	}
	f.flags.Store(&c.Flags)
	return f
}

// Flags returns the values in force of all flags by name.
func (c *ConfigFollower) Flags() map[string]string { return *c.flags.Load() }

// LiveFlags lists the flags whose fields may change while the proxy runs.
func LiveFlags() []string {
	var list []string
	for _, l := range new(ConfigFollower).liveChanges() {
		list = append(list, l.flags...)
	}
	return list
}

// liveChange is a setting that may change while the proxy runs: its flags, and how it is put in force.
type liveChange struct {
	flags []string
	apply func()
}

// liveChanges lists the settings that may change. With every other flag the process has
// done something that it does once, or its parts were built with it.
func (c *ConfigFollower) liveChanges() []liveChange {
	return []liveChange{
		{[]string{
			"cluster-cidr", "detect-local-mode", "pod-bridge-interface", "pod-interface-name-prefix",
			"masquerade-all", "iptables-masquerade-bit", "nodeport-addresses", "nftproxy-no-masquerade-cidrs",
		}, func() { c.watcher.SetSettings(&c.now.Rules.Settings) }},
		{[]string{"iptables-min-sync-period"}, func() { c.loop.SetMinSyncPeriod(c.now.loop().MinSyncPeriod) }},
		{[]string{"v"}, func() { c.started.SetVerbosity(c.now.Verbosity) }},
		{[]string{"oom-score-adj"}, func() { process.SetOOMScoreAdj(c.now.OOMScoreAdj, c.log) }},
		{[]string{
			"conntrack-max-per-core", "conntrack-min", "conntrack-tcp-timeout-established", "conntrack-tcp-timeout-close-wait",
			"conntrack-tcp-be-liberal", "conntrack-udp-timeout", "conntrack-udp-timeout-stream",
		}, func() { c.sysctls.set(c.now.Sysctls) }},
	}
}

// Run follows the file until the context ends.
func (c *ConfigFollower) Run(ctx context.Context) error {
	watch.FollowFile(ctx, c.started.File, c.Update)
	return nil
}

// Update takes the text of the file, or the error of reading it.
func (c *ConfigFollower) Update(text []byte, err error) {
	if err != nil {
		text = []byte(err.Error())
	}
	if bytes.Equal(text, c.text) {
		return
	}
	c.text = text
	next := (*Config)(nil)
	if err == nil {
		next, err = c.started.Parse(text)
	}
	if err != nil {
		c.reject(err)
		return
	}
	c.accept(next)
}

// reject reports a file that cannot be used. All settings stay.
func (c *ConfigFollower) reject(err error) {
	c.Counts.Reject()
	c.log.Error("the configuration file cannot be used; the settings from before its change stay in force", "file",
		c.started.File, "err", err)
	c.aboutNode(watch.ReasonConfigInvalid, fmt.Sprintf("the settings from before the change stay in force: %s",
		strings.ReplaceAll(err.Error(), "\n", "; ")))
}

// accept puts in force what can be, and says of the rest that it needs a restart.
func (c *ConfigFollower) accept(next *Config) {
	before := c.now
	c.now = next
	var live, restart []string
	var applies []func()
	changed, inForce := differences(before.Flags, next.Flags), maps.Clone(c.started.Flags)
	for _, l := range c.liveChanges() {
		known := len(live)
		for _, flag := range l.flags {
			inForce[flag] = next.Flags[flag]
			if slices.Contains(changed, flag) {
				live = append(live, field(flag, before, next))
			}
		}
		if len(live) > known {
			applies = append(applies, l.apply)
		}
	}
	for _, flag := range differences(inForce, next.Flags) {
		restart = append(restart, field(flag, c.started, next))
	}
	notes, mistakes := added(before.Notes, next.Notes), added(before.Mistakes, next.Mistakes)
	// First the cause, then its effect: a sync by the new settings stands in the log after their change.
	c.report(live, restart, mistakes, notes)
	c.restart = restart
	for _, apply := range applies {
		apply()
	}
	c.flags.Store(&inForce)
	c.Counts.Accept(len(restart) > 0)
}

// report logs the fields that are in force from now on, those that need a restart, and new mistakes and notes.
func (c *ConfigFollower) report(live, restart, mistakes, notes []string) {
	log := c.log.With("file", c.started.File)
	log.Info("the configuration file has changed", "in_force", live)
	logNotes(log, mistakes, notes)
	if len(restart) == 0 || slices.Equal(restart, c.restart) {
		return
	}
	log.Warn("changes of the configuration file need a restart of nftproxy", "fields", restart)
	c.aboutNode(watch.ReasonConfigRestart, fmt.Sprintf("restart nftproxy on node %s: its configuration file has changed "+
		"in %s, which counts from the next start on", c.node, strings.Join(restart, ", ")))
}

// added lists what a list has that one before lacks.
func added(before, now []string) []string {
	return slices.DeleteFunc(slices.Clone(now), func(s string) bool { return slices.Contains(before, s) })
}

// differences lists the flags that have other values.
func differences(a, b map[string]string) []string {
	var list []string
	for _, flag := range slices.Sorted(maps.Keys(a)) {
		if other, ok := b[flag]; ok && other != a[flag] {
			list = append(list, flag)
		}
	}
	return list
}

// field is the name of a flag's field in the configuration file. One of the two configurations
// has its value from there.
func field(flag string, before, after *Config) string {
	for _, c := range []*Config{after, before} {
		if name := c.Origin[flag]; name != "" {
			return name
		}
	}
	return "--" + flag
}
