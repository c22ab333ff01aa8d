package takeover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/nft"
	"nftproxy/node/otherproxy"
)

const (
	// kubeProxyPeriod is the time between two looks for kube-proxy.
	kubeProxyPeriod = 10 * time.Second
	// kubeProxyRest is how long kube-proxy must be gone before its rules are removed. It is
	// longer than the time after which a kubelet starts a container again that ends again and
	// again, 5 min at most (the back-off CrashLoopBackOff), and leaves a minute to start it.
	kubeProxyRest = 6 * time.Minute
	// inUseRest is how long to wait for connections to end that use what kube-proxy's IPVS mode left: looking for them
	// reads all sockets.
	inUseRest = time.Minute
)

// KubeProxy looks for kube-proxy on this node. It reports when both proxies serve
// the same Services, and removes kube-proxy's rules once it certainly has ended and our own
// program is in force.
type KubeProxy struct {
	log    *slog.Logger
	record func(note string)
	count  func(kinds []otherproxy.Kind, running bool)
	// rules, running and remove are those of package otherproxy.
	rules   func() (kinds []otherproxy.Kind, written bool, err error)
	running func(context.Context) (otherproxy.Running, error)
	remove  func(ctx context.Context, report func(otherproxy.Rules, error)) error
	// felix is otherproxy.FindFelix.
	felix func() (otherproxy.Felix, error)
	// strictARP is otherproxy.StrictARP.
	strictARP func() bool
	now       func() time.Time
	beside    bool
	// inForce says that our program has been in force in both families.
	inForce atomic.Bool

	// last is the state that was logged last, failure the error, and seen what was said of Felix. note is what people
	// should know of the state.
	last, failure, seen string
	note                atomic.Pointer[string]
	// gone is since when kube-proxy has not been running, or zero.
	gone time.Time
	// absent says that the last look found no kube-proxy, and hidden that its rules changed between two such looks: there
	// is a kube-proxy that is not seen, until one is seen or its rules are gone.
	absent, hidden bool
	// tried says that a removal was made since kube-proxy ran last. What it left stays.
	tried bool
	// again is when the next removal may be, after one that open connections held up.
	again time.Time
	// failed has the outcomes of removals that were logged, by the table, since kube-proxy ran
	// last.
	failed map[string]string
}

// NewKubeProxy makes a follower that counts what it sees, and records notes of it. beside says that this proxy does not
// serve the cluster's Services in kube-proxy's place: it has other Services, or only those of files. kube-proxy is only
// counted then. exclude has the ranges of virtual servers of other programs.
func NewKubeProxy(log *slog.Logger, record func(note string), count func(kinds []otherproxy.Kind, running bool),
	beside bool, exclude []netip.Prefix) *KubeProxy {
	return &KubeProxy{
		log: log, beside: beside, count: count, record: record, failed: map[string]string{},
		rules: new(otherproxy.Watcher).Look, running: otherproxy.LookForKubeProxy, strictARP: otherproxy.StrictARP,
		felix: otherproxy.FindFelix, now: time.Now,
		remove: func(ctx context.Context, report func(otherproxy.Rules, error)) error {
			return otherproxy.RemoveAll(ctx, otherproxy.Removal{Closed: Closed, Exclude: exclude,
				KeepSign: otherproxy.SignOfFelix}, report)
		},
	}
}

// Observe learns whether our program is in force.
func (f *KubeProxy) Observe(s proxy.Sync) {
	if s.InForce(nft.IPv4) && s.InForce(nft.IPv6) {
		f.inForce.Store(true)
	}
}

// Run looks for kube-proxy until the context ends, and returns nil.
func (f *KubeProxy) Run(ctx context.Context) error {
	ticker := time.NewTicker(kubeProxyPeriod)
	defer ticker.Stop()
	for {
		f.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (f *KubeProxy) look(ctx context.Context) {
	kinds, written, err := f.rules()
	var running otherproxy.Running
	if err == nil {
		running, err = f.running(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if err.Error() != f.failure {
			f.failure = err.Error()
			f.log.Warn("cannot look for kube-proxy", "err", err)
		}
		return
	}
	f.failure = ""
	f.count(kinds, running.Yes())
	if f.beside {
		return
	}
	f.judge(kinds, written, &running)
	f.report(kinds, running)
	if !running.No() {
		f.gone, f.again, f.tried = time.Time{}, time.Time{}, false
		clear(f.failed)
		return
	}
	if f.gone.IsZero() {
		f.gone = f.now()
	}
	if len(kinds) > 0 && !f.tried && f.inForce.Load() && f.now().Sub(f.gone) >= kubeProxyRest && !f.now().Before(f.again) {
		f.removeRules(ctx)
	}
}

// judge makes of a kube-proxy that does not run one that may, where its rules change all the same.
func (f *KubeProxy) judge(kinds []otherproxy.Kind, written bool, running *otherproxy.Running) {
	if len(kinds) == 0 || running.Yes() {
		f.hidden = false
	}
	f.hidden = f.hidden || written && f.absent && len(kinds) > 0 && running.No()
	f.absent = running.No()
	if f.hidden && running.No() {
		running.Unknown = otherproxy.ErrWritten
	}
}

// Note says in a sentence what people should know; empty for nothing. It may be called from any goroutine.
func (f *KubeProxy) Note() string {
	if note := f.note.Load(); note != nil {
		return *note
	}
	return ""
}

// report logs a state that differs from the last one. Two proxies on one node are a
// warning and an event.
func (f *KubeProxy) report(kinds []otherproxy.Kind, running otherproxy.Running) {
	var names []string
	for _, k := range kinds {
		names = append(names, string(k))
	}
	list := strings.Join(names, ", ")
	state := fmt.Sprintf("%v %v %s", running.Yes(), running.No(), list)
	if state == f.last {
		return
	}
	before := f.last
	f.last = state
	f.note.Store(nil)
	f.reportFelix()
	warn := func(text, hint string) {
		f.log.Warn(text, "kube-proxy", running.String(), "rules", list, "hint", hint)
		note := fmt.Sprintf("%s (%s; rules: %s): %s", text, running, list, hint)
		f.record(note)
		f.note.Store(&note)
	}
	switch {
	case running.Yes() && len(kinds) > 0:
		warn("kube-proxy runs beside nftproxy: both serve the Services of this node", "stop one of the two (docs/migrate.md)")
	case running.Yes():
		f.log.Info("kube-proxy runs beside nftproxy and has no rules yet", "kube-proxy", running.String())
	case len(kinds) > 0 && running.No():
		f.log.Info("there are rules of a kube-proxy that does not run; they will be removed soon", "rules", list, "rest",
			kubeProxyRest)
	case len(kinds) > 0:
		warn("there are rules of kube-proxy beside those of nftproxy",
			"if kube-proxy has been stopped, remove its rules by nftproxy cleanup --kube-proxy, with --force where that "+
				"command cannot tell either (docs/migrate.md); they go out of date")
	case before != "":
		f.log.Info("kube-proxy has no rules on this node", "kube-proxy", running.String())
	}
}

// reportFelix logs which data plane Calico's Felix has, and which it will have without kube-proxy's nftables tables. To
// look reads all chains, so it is done only when kube-proxy's state has changed.
func (f *KubeProxy) reportFelix() {
	felix, err := f.felix()
	text := felix.String()
	if err != nil {
		text = err.Error()
	}
	if text == f.seen {
		return
	}
	f.seen = text
	switch {
	case err != nil:
		f.log.Warn("cannot look for Calico's Felix", "err", err)
	case felix.Depends():
		f.log.Warn("Calico may change its data plane when kube-proxy's nftables tables are removed", "felix", text, "hint",
			"before that, set Felix' "+otherproxy.FelixRemedy)
	case felix.There():
		f.log.Info("Calico runs on this node", "felix", text)
	}
}

// removeRules removes the rules. It tries again at the next look, unless the rules that are left
// have to stay.
func (f *KubeProxy) removeRules(ctx context.Context) {
	f.tried = true
	err := f.remove(ctx, func(r otherproxy.Rules, err error) {
		switch {
		case err == nil:
			f.log.Info("removed the rules of a kube-proxy that does not run any more", "rules", r.String())
			if r.Kind == otherproxy.IPVS && f.strictARP() {
				f.log.Info(StrictARPHint)
			}
		case errors.Is(err, otherproxy.ErrInUse):
			f.tried, f.again = false, f.now().Add(inUseRest)
			// What is left changes as connections end.
			if f.failed[string(r.Kind)] == "" {
				f.failed[string(r.Kind)] = err.Error()
				f.log.Info("connections use rules of kube-proxy; these go when the connections have ended", "rules", r.String(),
					"hint", "nftproxy cleanup --kube-proxy --end-connections removes them at once (docs/migrate.md)")
			}
		case errors.Is(err, otherproxy.ErrSign):
			f.warnOnce(string(r.Kind)+" "+r.Table, err, "an empty chain of kube-proxy stays", "rules", r.String())
		case otherproxy.Final(err):
			f.warnOnce(string(r.Kind)+" "+r.Table, err, "could not remove rules of kube-proxy; they stay", "rules", r.String())
		default:
			f.tried = false
			f.warnOnce(string(r.Kind)+" "+r.Table, err, "could not remove rules of kube-proxy; will try again", "rules",
				r.String())
		}
	})
	_, _, _ = f.rules() // A look that finds no change but this one; the next look tells of an error.
	if err != nil && ctx.Err() == nil {
		f.tried = false
		f.warnOnce("", err, "could not remove the rules of kube-proxy; will try again")
	}
}

// warnOnce logs why rules are still there, unless it was the same at the last try.
func (f *KubeProxy) warnOnce(table string, err error, text string, args ...any) {
	if f.failed[table] == err.Error() {
		return
	}
	f.failed[table] = err.Error()
	f.log.Warn(text, append(args, "err", err)...)
}

// StrictARPHint says what to do about a setting that IPVS mode left. Its former value is not known, and others may need
// it.
const StrictARPHint = "the node answers ARP strictly, as kube-proxy's ipvs.strictARP sets it; nftproxy does not need " +
	"that: sysctl -w net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0, unless another program does"
