package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"

	"nftproxy/conntrack"
	"nftproxy/daemon/affinity"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

func (d *daemon) logProblem(p watch.Problem, counts *metrics.Metrics) {
	if request := (*watch.RequestError)(nil); errors.As(p, &request) {
		d.log.Warn("a request to the API server failed", "err", p)
		return
	}
	if absent := (*watch.AbsentError)(nil); errors.As(p, &absent) {
		d.log.Info("the API server does not have a resource; going on without it, and asking again every few minutes", "err", p)
		return
	}
	if blind := (*watch.FollowError)(nil); errors.As(p, &blind) {
		d.log.Warn("the kernel does not tell of all changes of the manifests", "err", p)
		return
	}
	if unreadable := (*watch.UnreadableError)(nil); errors.As(p, &unreadable) {
		d.log.Error("the manifests cannot be read", "err", p)
		return
	}
	if errors.Is(p, watch.ErrIgnoredKind) {
		d.log.Debug("ignored an object of a kind that a service proxy does not use", "err", p)
		return
	}
	if wait := (*watch.AwaitError)(nil); errors.As(p, &wait) {
		d.log.Warn("the first rules wait for objects", "err", p)
		return
	}
	if omitted := (*watch.OmittedError)(nil); errors.As(p, &omitted) {
		for kind, n := range omitted.Kinds {
			counts.CountProblems(kind, n)
		}
		d.log.Warn("too many problems in objects for a line each; this line counts the others", "count", omitted.Count(), "err", p)
		return
	}
	if d.logRetention(p) {
		return
	}
	counts.CountProblems(p.Object.Kind, 1)
	d.log.Warn("ignored a part of an object that cannot be used", "err", p)
	if e, ok := p.Event(); ok {
		d.record(e)
	}
}

// logAnswers logs that the API server answers again: when everything is up to date,
// and before that, what is still behind.
func (d *daemon) logAnswers(behind []string) {
	if len(behind) > 0 {
		d.log.Info("the API server answers only in part; some objects may be out of date", "behind", behind)
		return
	}
	d.log.Info("the API server answers again; all objects are up to date")
}

func (d *daemon) logPass(r conntrack.Run) {
	if r.Err != nil && !r.Repeated {
		d.log.Warn("could not remove all stale conntrack entries; will try again", "err", r.Err)
	}
	removed, reasons := 0, []any{}
	for _, reason := range slices.Sorted(maps.Keys(r.Removed)) {
		removed += r.Removed[reason]
		reasons = append(reasons, slog.Int(string(reason), r.Removed[reason]))
	}
	if removed > 0 {
		d.log.Info("removed stale conntrack entries", "entries", removed, slog.Group("why", reasons...), "scanned", r.Scanned, "took", r.Duration, "cpu", r.CPU, "lag", r.Lag)
	}
}

// sweepLogger logs what sweeps removed. It logs a failure, and a Service port that
// can remember no more clients, once while that lasts.
func (d *daemon) sweepLogger() func(affinity.Run) {
	full := map[ruleset.AffinityName]bool{}
	return func(r affinity.Run) {
		switch {
		case r.Err != nil && !r.Repeated:
			d.log.Warn("could not sweep the remembered clients; will try again", "err", r.Err)
		case r.Forgotten:
			d.log.Warn("forgot all clients of a Service port: its endpoints go faster than its clients can be looked through; they choose an endpoint anew",
				"service", r.Name.Service, "map", r.Name.Map, "took", r.Duration)
		case r.Swept > 0:
			d.log.Info("forgot clients of endpoints that are gone", "service", r.Name.Service, "clients", r.Swept, "took", r.Duration)
		}
		switch {
		case r.Err != nil:
		case r.Clients+r.Swept < r.Limit:
			delete(full, r.Name)
		case !full[r.Name]:
			full[r.Name] = true
			d.log.Warn("a Service port cannot remember more clients; further clients are served without session affinity",
				"service", r.Name.Service, "map", r.Name.Map, "clients", r.Limit)
		}
	}
}

// syncLogger logs the first sync, and each failure once until it changes. It logs
// the other syncs at level debug.
func (d *daemon) syncLogger(w *watch.Watcher) func(proxy.Sync) {
	first, failure := true, ""
	quarantined := map[string]string{}
	return func(s proxy.Sync) {
		text := ""
		if s.Err != nil {
			text = s.Err.Error()
		}
		switch {
		case text != "" && text != failure:
			d.log.Error("the newest rules are not in force; will try again", "err", s.Err)
		case text == "" && failure != "":
			d.log.Info("the newest rules are in force again")
		}
		failure = text
		d.logQuarantine(w, quarantined, s.Quarantined)
		if s.Err != nil {
			return
		}
		if s.Check && s.Written > 0 {
			d.log.Warn("repaired our tables: another program had changed them", "written", s.Written)
		}
		level := slog.LevelDebug
		if first {
			level, first = slog.LevelInfo, false
		}
		d.log.LogAttrs(context.Background(), level, "synced",
			slog.Int("services", s.Snapshot.Services.Len()), slog.Int("written", s.Written), slog.Duration("latency", s.Latency()),
			slog.Duration("compile", s.Compile), slog.Duration("read", s.Read), slog.Duration("plan", s.Plan),
			slog.Duration("apply", s.Apply), slog.Duration("encode", s.Encode), slog.Duration("commit", s.Commit))
	}
}

// logQuarantine logs each Service that the kernel refuses, and when the kernel no
// longer refuses it.
func (d *daemon) logQuarantine(w *watch.Watcher, known map[string]string, now map[string]error) {
	for name := range known {
		if _, still := now[name]; !still {
			d.log.Info("the kernel no longer refuses a Service", "service", name)
			delete(known, name)
		}
	}
	for name, err := range now {
		if known[name] != err.Error() {
			known[name] = err.Error()
			d.log.Error("the kernel refuses a Service; it is left out", "service", name, "err", err)
			d.recordRefused(w, name, err)
		}
	}
}
