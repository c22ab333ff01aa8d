package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"

	"nftproxy/conntrack"
	"nftproxy/internal/affinity"
	"nftproxy/internal/metrics"
	"nftproxy/internal/proxy"
	"nftproxy/watch"
)

func (d *daemon) logProblem(p watch.Problem, counts *metrics.Metrics) {
	if request := (*watch.RequestError)(nil); errors.As(p, &request) {
		d.log.Warn("the API server does not answer as it should", "err", p)
		return
	}
	if errors.Is(p, watch.ErrIgnoredKind) {
		d.log.Debug("not for a service proxy", "err", p)
		return
	}
	counts.CountProblem(p.Object.Kind)
	d.log.Warn("cannot use as it stands", "err", p)
	if e, ok := p.Event(); ok {
		d.record(e)
	}
}

func (d *daemon) logPass(r conntrack.Run) {
	if r.Err != nil && !r.Repeated {
		d.log.Warn("cleaning conntrack", "err", r.Err)
	}
	removed, reasons := 0, []any{}
	for _, reason := range slices.Sorted(maps.Keys(r.Removed)) {
		removed += r.Removed[reason]
		reasons = append(reasons, slog.Int(string(reason), r.Removed[reason]))
	}
	if removed > 0 {
		d.log.Info("removed stale conntrack entries", "entries", removed, slog.Group("why", reasons...), "scanned", r.Scanned, "took", r.Duration)
	}
}

func (d *daemon) logSweep(r affinity.Run) {
	switch {
	case r.Err != nil && !r.Repeated:
		d.log.Warn("sweeping remembered clients", "err", r.Err)
	case r.Swept > 0:
		d.log.Info("clients of endpoints that have gone are no longer remembered", "clients", r.Swept, "took", r.Duration)
	}
}

// syncLogger logs the first sync, each failure once until it changes, and the
// others for those who ask for it.
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
			d.log.Error("the program is not in force", "err", s.Err)
		case text == "" && failure != "":
			d.log.Info("the program is in force again")
		}
		failure = text
		d.logQuarantine(w, quarantined, s.Quarantined)
		if s.Err != nil {
			return
		}
		if s.Check && s.Written > 0 {
			d.log.Warn("somebody else had changed our tables; repaired", "written", s.Written)
		}
		level := slog.LevelDebug
		if first {
			level, first = slog.LevelInfo, false
		}
		d.log.Log(context.Background(), level, "synced",
			"services", s.Snapshot.Services.Len(), "written", s.Written, "latency", s.Latency(),
			"compile", s.Compile, "read", s.Read, "plan", s.Plan, "apply", s.Apply, "encode", s.Encode, "commit", s.Commit)
	}
}

// logQuarantine tells what the kernel refuses, and when it no longer does.
func (d *daemon) logQuarantine(w *watch.Watcher, known map[string]string, now map[string]error) {
	for name := range known {
		if _, still := now[name]; !still {
			d.log.Info("no longer refused by the kernel", "service", name)
			delete(known, name)
		}
	}
	for name, err := range now {
		if known[name] != err.Error() {
			known[name] = err.Error()
			d.log.Error("refused by the kernel and left out", "service", name, "err", err)
			d.recordRefused(w, name, err)
		}
	}
}
