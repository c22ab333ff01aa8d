package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"nftproxy/conntrack"
	"nftproxy/daemon/affinity"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// reporter tells people: in the log, and by events.
type reporter struct {
	log  *slog.Logger
	node string
	// record writes an event to the API server.
	record func(watch.Event)
}

// aboutNode writes an event about the node.
func (r reporter) aboutNode(reason watch.Reason, note string) {
	r.record(watch.Event{Object: watch.NodeObject(r.node), Reason: reason, Note: note})
}

// aboutService writes an event about a Service. It writes none about what is no object, such as another part of the
// program.
func (r reporter) aboutService(w *watch.Watcher, name service.Name, reason watch.Reason, note string) {
	if o := w.ServiceObject(name); o.UID != "" {
		r.record(watch.Event{Object: o, Reason: reason, Note: note})
	}
}

// serverFailed returns a function that writes an event about a server that cannot listen. The note is kube-proxy's.
func (r reporter) serverFailed(reason watch.Reason, prefix string) func(error) {
	return func(err error) { r.aboutNode(reason, prefix+err.Error()) }
}

// failures tells a new failure from the last one.
type failures struct{ last string }

// isNew says whether an error is neither nil nor, by its text, the one that it was asked about before.
func (f *failures) isNew(err error) bool {
	before := f.last
	f.last = ""
	if err != nil {
		f.last = err.Error()
	}
	return err != nil && f.last != before
}

// joinNotes joins notes that are not empty, each on a line of its own.
func joinNotes(notes ...string) string {
	return strings.Join(slices.DeleteFunc(notes, func(n string) bool { return n == "" }), "\n")
}

func (r reporter) logProblem(p watch.Problem, counts *metrics.Metrics) {
	omitted := (*watch.OmittedError)(nil)
	switch {
	case errors.As(p, new(*watch.RequestError)):
		r.log.Warn("a request to the API server failed", "err", p)
	case errors.As(p, new(*watch.AbsentError)):
		r.log.Info("the API server does not have a resource; going on without it, and asking again every few minutes", "err",
			p)
	case errors.As(p, new(*watch.UnreadableError)):
		r.log.Error("the manifests cannot be read", "err", p)
	case errors.Is(p, watch.ErrIgnoredKind):
		r.log.Info("ignored an object of a kind that a service proxy does not use", "err", p)
	case errors.As(p, new(*watch.AwaitError)):
		r.log.Warn("the first rules wait for objects", "err", p)
	case errors.As(p, &omitted):
		for kind, n := range omitted.Kinds {
			counts.CountProblems(kind, n)
		}
		r.log.Warn("too many problems in objects for a line each; this line counts the others", "count", omitted.Count(),
			"err", p)
	case errors.As(p, new(*watch.FormerError)):
		r.log.Warn("cannot tell which Services an earlier run served", "err", p.Err)
	default:
		r.logWithEvent(p, counts)
	}
}

// logWithEvent logs a problem in an object, or Services that lists lack.
func (r reporter) logWithEvent(p watch.Problem, counts *metrics.Metrics) {
	retained, missing, removed := (*watch.RetainedError)(nil), (*watch.MissingError)(nil), (*watch.RemovedError)(nil)
	switch {
	case errors.As(p, &retained):
		r.log.Warn("a list lacks most Services; they are served on for a while", "missing", retained.Missing, "serving",
			retained.Serving, "for", retained.Period, "err", p.Err)
	case errors.As(p, &missing):
		r.log.Warn("a list lacks all Services; they are not served on", "services", missing.Services, "err", p.Err)
	case errors.As(p, &removed):
		r.log.Warn("Services that lists have lacked are not served on", "services", removed.Services, "err", p.Err)
	default:
		counts.CountProblems(p.Object.Kind, 1)
		r.log.Warn("ignored a part of an object that cannot be used", "err", p)
	}
	if e, ok := p.Event(); ok {
		r.record(e)
	}
}

// logAnswers logs that the API server answers again: when everything is up to date,
// and before that, what is still behind.
func (r reporter) logAnswers(behind []string) {
	if len(behind) > 0 {
		r.log.Info("the API server answers only in part; some objects may be out of date", "behind", behind)
		return
	}
	r.log.Info("the API server answers again; all objects are up to date")
}

func (r reporter) logPass(run conntrack.Run) {
	if run.Err != nil && !run.Repeated {
		r.log.Warn("could not remove all stale conntrack entries; will try again", "err", run.Err)
	}
	removed, reasons := 0, []any{}
	for _, reason := range slices.Sorted(maps.Keys(run.Removed)) {
		removed += run.Removed[reason]
		reasons = append(reasons, slog.Int(string(reason), run.Removed[reason]))
	}
	if removed > 0 {
		r.log.Info("removed stale conntrack entries", "entries", removed, slog.Group("why", reasons...), "scanned",
			run.Scanned, "took", run.Duration, "cpu", run.CPU, "lag", run.Lag)
	}
}

// sweepLogger logs what sweeps removed. It logs a failure, and a Service port that
// can remember no more clients, once while that lasts.
func (r reporter) sweepLogger() func(affinity.Run) {
	full := map[ruleset.AffinityName]bool{}
	return func(run affinity.Run) {
		switch {
		case run.Err != nil && !run.Repeated:
			r.log.Warn("could not sweep the remembered clients; will try again", "err", run.Err)
		case run.Forgotten:
			r.log.Warn("forgot all clients of a Service port: its endpoints go faster than its clients can be looked through; "+
				"they choose an endpoint again",
				"service", run.Name.Service, "map", run.Name.Map, "took", run.Duration)
		case run.Swept > 0:
			r.log.Info("forgot clients of endpoints that are gone", "service", run.Name.Service, "clients", run.Swept, "took",
				run.Duration)
		}
		switch {
		case run.Err != nil:
		case run.Clients+run.Swept < run.Limit:
			delete(full, run.Name)
		case !full[run.Name]:
			full[run.Name] = true
			r.log.Warn("a Service port cannot remember more clients; further clients are served without session affinity",
				"service", run.Name.Service, "map", run.Name.Map, "clients", run.Limit)
		}
	}
}

// syncObserver logs the first sync, and each failure once until it changes. It logs the other syncs at level debug.
func (r reporter) syncObserver(w *watch.Watcher) func(proxy.Sync) {
	first, failing := true, failures{}
	quarantined := map[string]string{}
	return func(s proxy.Sync) {
		before := failing.last
		switch {
		case failing.isNew(s.Err):
			r.log.Error("the newest rules are not in force; will try again", "err", s.Err)
		case s.Err == nil && before != "":
			r.log.Info("the newest rules are in force again")
		}
		r.logQuarantine(w, quarantined, s.Quarantined)
		if s.Err != nil {
			return
		}
		if s.Repaired() {
			r.log.Warn("repaired our tables: another program had changed them", "written", s.Written)
		}
		level := slog.LevelDebug
		if first {
			level, first = slog.LevelInfo, false
		}
		r.log.LogAttrs(context.Background(), level, "synced",
			slog.Int("services", s.Snapshot.Services.Len()), slog.Int("written", s.Written),
			slog.Duration("latency", s.Latency()),
			slog.Duration("compile", s.Compile), slog.Duration("read", s.Read), slog.Duration("plan", s.Plan),
			slog.Duration("apply", s.Apply), slog.Duration("encode", s.Encode), slog.Duration("commit", s.Commit))
	}
}

// logQuarantine logs each Service that the kernel refuses, and when the kernel no longer refuses it.
func (r reporter) logQuarantine(w *watch.Watcher, known map[string]string, now map[string]error) {
	for name := range known {
		if _, still := now[name]; !still {
			r.log.Info("the kernel no longer refuses a Service", "service", name)
			delete(known, name)
		}
	}
	for name, err := range now {
		if known[name] != err.Error() {
			known[name] = err.Error()
			r.log.Error("the kernel refuses a Service; it is left out", "service", name, "err", err)
			r.aboutService(w, service.Name(name), watch.ReasonRefused, fmt.Sprintf("left out on node %s: %v", r.node, err))
		}
	}
}
