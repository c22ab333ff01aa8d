package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"nftproxy/daemon/metrics"
	"nftproxy/daemon/process"
	"nftproxy/daemon/proxy"
	"nftproxy/watch"
)

// unfollowedPeriod is the time between two looks at a file that cannot be followed.
const unfollowedPeriod = 30 * time.Second

// configFollower puts changes of the configuration file in force. It is not safe for
// concurrent use.
type configFollower struct {
	// started is the proxy as it began, now the one that the file last described.
	started, now *daemon
	// text is the file as it was read last, or the error of reading it.
	text []byte
	// restart has the fields that differ from the start and count at the next start.
	restart []string

	// follow is watch.FollowFile.
	follow  func(ctx context.Context, path string, each func(text []byte, err error)) error
	watcher *watch.Watcher
	loop    *proxy.Loop
	counts  *metrics.ConfigFile
}

// liveChange is a setting that may change while the proxy runs: its flags, and how it
// is put in force.
type liveChange struct {
	flags []string
	apply func()
}

// liveChanges lists the settings that may change. With every other flag the process has
// done something that it does once, or its parts were built with it.
func (c *configFollower) liveChanges() []liveChange {
	o := &c.now.options
	// The daemon that began has the log and the recorder.
	running := *c.started
	running.options = *o
	return []liveChange{
		{[]string{
			"cluster-cidr", "detect-local-mode", "pod-bridge-interface", "pod-interface-name-prefix",
			"masquerade-all", "iptables-masquerade-bit", "nodeport-addresses",
		}, func() { c.watcher.SetSettings(&c.now.ruleset.Settings) }},
		{[]string{"iptables-min-sync-period"}, func() { c.loop.SetMinSyncPeriod(c.now.loopConfig().MinSyncPeriod) }},
		{[]string{"v"}, func() { c.started.setVerbosity(o.verbosity) }},
		{[]string{"oom-score-adj"}, func() { process.SetOOMScoreAdj(o.oomScoreAdj, running.log) }},
		{[]string{
			"conntrack-max-per-core", "conntrack-min", "conntrack-tcp-timeout-established", "conntrack-tcp-timeout-close-wait",
			"conntrack-tcp-be-liberal", "conntrack-udp-timeout", "conntrack-udp-timeout-stream",
		}, func() {
			running.wanted.Store(&o.sysctls)
			running.reportSysctls(running.setWanted())
		}},
	}
}

// run follows the file until the context ends. The kernel bounds how many files all
// processes of a user follow (fs.inotify.max_user_instances is 128, and there are other
// bounds). Where it refuses, run reads the file every half minute and tries again.
func (c *configFollower) run(ctx context.Context) {
	file, last := c.started.options.config.file, ""
	for {
		err := c.follow(ctx, file, c.update)
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != last {
			last = text
			c.started.log.Warn("cannot follow the configuration file; reading it now and then", "file", file, "period", unfollowedPeriod, "err", err)
		}
		c.update(os.ReadFile(file))
		select {
		case <-ctx.Done():
			return
		case <-time.After(unfollowedPeriod):
		}
	}
}

// update takes the text of the file, or the error of reading it.
func (c *configFollower) update(text []byte, err error) {
	if err != nil {
		text = []byte(err.Error())
	}
	if bytes.Equal(text, c.text) {
		return
	}
	c.text = text
	next := (*daemon)(nil)
	if err == nil {
		next, err = c.started.options.config.given.daemon(text)
	}
	if err != nil {
		c.reject(err)
		return
	}
	c.accept(next)
}

// reject reports a file that cannot be used. All settings stay.
func (c *configFollower) reject(err error) {
	c.counts.Reject()
	d := c.started
	d.log.Error("the configuration file cannot be used; the settings from before its change stay in force", "file", d.options.config.file, "err", err)
	d.record(watch.Event{
		Object: watch.NodeObject(d.node), Reason: watch.ReasonConfigInvalid,
		Note: fmt.Sprintf("the settings from before the change stay in force: %s", strings.ReplaceAll(err.Error(), "\n", "; ")),
	})
}

// accept puts in force what can be, and says of the rest that it needs a restart.
func (c *configFollower) accept(next *daemon) {
	before := c.now
	c.now = next
	var live, restart []string
	var applies []func()
	changed, old := differences(before.flags, next.flags), differences(c.started.flags, next.flags)
	inForce := map[string]string{}
	for _, l := range c.liveChanges() {
		for _, flag := range l.flags {
			inForce[flag] = next.flags.Lookup(flag).Value.String()
		}
		concerned := slices.DeleteFunc(slices.Clone(l.flags), func(flag string) bool { return !slices.Contains(changed, flag) })
		if len(concerned) > 0 {
			applies = append(applies, l.apply)
		}
		for _, flag := range concerned {
			live = append(live, field(flag, before, next))
		}
		old = slices.DeleteFunc(old, func(flag string) bool { return slices.Contains(l.flags, flag) })
	}
	for _, flag := range old {
		restart = append(restart, field(flag, c.started, next))
	}
	notes := slices.DeleteFunc(next.notes(), func(n string) bool { return slices.Contains(before.notes(), n) })
	// First the cause, then its effect: a sync by the new settings stands in the log after their change.
	c.report(live, restart, notes)
	c.restart = restart
	for _, apply := range applies {
		apply()
	}
	c.started.live.Store(&inForce)
	c.counts.Accept(len(restart) > 0)
}

// report logs the fields that are in force from now on, those that need a restart, and
// new notes about parts without effect.
func (c *configFollower) report(live, restart, notes []string) {
	d := c.started
	log := d.log.With("file", d.options.config.file)
	log.Info("the configuration file has changed", "in_force", live)
	if len(notes) > 0 {
		log.Warn("parts of the configuration have no effect", "notes", notes)
	}
	if len(restart) == 0 || slices.Equal(restart, c.restart) {
		return
	}
	log.Warn("changes of the configuration file need a restart of nftproxy", "fields", restart)
	d.record(watch.Event{
		Object: watch.NodeObject(d.node), Reason: watch.ReasonConfigRestart,
		Note: fmt.Sprintf("restart nftproxy on node %s: its configuration file has changed in %s, which counts from the next start on", d.node, strings.Join(restart, ", ")),
	})
}

// differences lists the flags that have other values.
func differences(a, b *pflag.FlagSet) []string {
	var list []string
	a.VisitAll(func(g *pflag.Flag) {
		if other := b.Lookup(g.Name); other != nil && other.Value.String() != g.Value.String() {
			list = append(list, g.Name)
		}
	})
	return list
}

// field is the name of a flag's field in the configuration file. One of the two daemons
// has its value from there.
func field(flag string, before, after *daemon) string {
	for _, d := range []*daemon{after, before} {
		if name := d.options.config.origin[flag]; name != "" {
			return name
		}
	}
	return "--" + flag
}
