package watch

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"time"

	"nftproxy/model/pace"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// Options are what a Watcher needs to know besides its source.
type Options struct {
	// Node is the name of this node's Node object, in lower case.
	Node string
	// NodeTimeout is how long the first update waits for the Node of an API
	// server once Services and EndpointSlices are there; 0 means 30 s,
	// kube-proxy's own. Manifests need not have one.
	NodeTimeout time.Duration
	// ListTimeout is how long the first update then waits for the list of
	// ServiceCIDRs; 0 means 5 s. It may be long where the rules of an earlier run are
	// in force.
	ListTimeout time.Duration
	// AwaitPodCIDRs holds the first update back until the Node has podCIDRs, which the
	// detect-local mode NodeCIDR needs, but no longer than PodCIDRTimeout; 0 means
	// 5 min, kube-proxy's own.
	AwaitPodCIDRs  bool
	PodCIDRTimeout time.Duration
	// ProxyName makes the watcher use only the Services with this value of the label
	// service.kubernetes.io/service-proxy-name; if it is empty, only those without the label.
	ProxyName string
	// IgnoreExternalIPs says that no Service gets its spec.externalIPs. The watcher
	// reports it for each Service that has any.
	IgnoreExternalIPs bool
	// AllSlices has an API server send the EndpointSlices too that no service proxy heeds, since a Service may miss them.
	AllSlices bool
	// Balance is that of the Services that have neither the annotation nor session affinity.
	Balance service.Balance
	// TryTimeouts returns an error if the kernel cannot give connections time-outs of their own. It is called for each
	// version of a Service that asks for some, while the watcher holds its lock. If it is nil, the kernel can.
	TryTimeouts func() error
	// Accounts say what the changes of each namespace have cost; nil for no account. The Services of a namespace in debt
	// are held back: then the snapshot has them as they were before.
	Accounts *pace.Accounts
	// MaxElements is how many elements of the node's tables one Service may
	// cost; 0 means service.DefaultMaxElements.
	MaxElements int
	// MaxAllElements is how many elements all Services together may cost beyond service.UncountedElements of each, and
	// once more by their slots, a quarter of it in one namespace; 0 means
	// service.DefaultMaxAllElements.
	MaxAllElements int
	// MaxAffinityPorts is how many ports of Services may have session affinity, a
	// quarter of them in one namespace; 0 means service.DefaultMaxAffinityPorts.
	MaxAffinityPorts int
	// MaxSourceLists is how many different lists of source ranges there may be, a quarter
	// of them by the Services of one namespace; 0 means service.DefaultMaxSourceLists.
	MaxSourceLists int
	// Retain is how long Services are still served after a list lacks them, if it lacks most
	// Services (retention.go); 0 means not at all.
	Retain time.Duration
	// Former reads the Services that the rules served before the start. It may be nil.
	Former Former
	// OwnPorts are ports of the node that no externalIP, load balancer's address or node
	// port takes, beside the kubelet's and those of the API server.
	OwnPorts []OwnPort
	// Settings are those that the rules start with: they say where pods are, and which addresses
	// serve node ports.
	Settings service.Settings
	// SlowStart has new endpoints of Services that ask for it begin with a part of their weight.
	SlowStart bool
	// Networks finds the networks in the given ranges that the node is on or has routes to. It
	// is called when the ServiceCIDRs change, and after RoutesChanged. It may be nil.
	Networks func(ranges []netip.Prefix) []netip.Prefix
	// Synced is called once, after the first update has waited for everything and
	// before the first snapshot is made. It must not block. It may be nil.
	Synced func()
	// Report is called with every problem, from one goroutine at a time and never while
	// the watcher holds a lock. It may be nil.
	Report func(Problem)
	// Answers is called, from the same goroutine as Report, when the API server answers again after
	// a RequestError. Its argument lists the resources that are still behind, each time that there
	// are fewer of them; it is empty when all are up to date and published. It may be nil.
	Answers func(behind []string)
}

// Watcher keeps a mailbox filled with the latest snapshot of one source. It
// runs once, with RunKubernetes or RunManifests.
type Watcher struct {
	opts Options
	out  *service.Mailbox
	// now tells how long a file of manifests has been gone, and for how long endpoints have been there.
	now func() time.Time
	// wake holds a token while there may be something to publish.
	wake chan struct{}

	mu     sync.Mutex
	index  *index
	outage outage
	// lastFailure is the last request that the API server did not answer, or refused.
	lastFailure error
	// since is when the oldest change that is not published yet arrived.
	since  time.Time
	synced bool
	// awaited is what the first update waits for.
	awaited []awaited
	bounds  *bounds
	// published is the last snapshot in the mailbox. Its zero value differs from each
	// snapshot of the index, which always has a Node.
	published service.Snapshot
	// counted has the changes that the last update in the mailbox counts. covered has those
	// of now, or of the last look that found no difference to that update's snapshot.
	counted, covered service.Changes
	// starts follows new endpoints, with Options.SlowStart. grows is when they have more of their weight; zero for never.
	starts share.SlowStarts
	grows  time.Time
}

// NewWatcher returns a Watcher that has not started.
func NewWatcher(opts Options, out *service.Mailbox) *Watcher {
	opts.NodeTimeout = cmp.Or(opts.NodeTimeout, 30*time.Second)
	opts.ListTimeout = cmp.Or(opts.ListTimeout, 5*time.Second)
	opts.PodCIDRTimeout = cmp.Or(opts.PodCIDRTimeout, 5*time.Minute)
	if opts.Synced == nil {
		opts.Synced = func() {}
	}
	if opts.Report == nil {
		opts.Report = func(Problem) {}
	}
	if opts.Answers == nil {
		opts.Answers = func([]string) {}
	}
	ix := newIndex(opts.Node)
	ix.start = time.Now()
	ix.retention = newRetention(opts.Retain)
	ix.options, ix.unprotected = opts, true
	ix.builder.SetMaxElements(cmp.Or(opts.MaxElements, service.DefaultMaxElements))
	ix.builder.SetMaxAllElements(cmp.Or(opts.MaxAllElements, service.DefaultMaxAllElements))
	ix.builder.SetMaxAffinityPorts(cmp.Or(opts.MaxAffinityPorts, service.DefaultMaxAffinityPorts))
	ix.builder.SetMaxSourceLists(cmp.Or(opts.MaxSourceLists, service.DefaultMaxSourceLists))
	return &Watcher{opts: opts, out: out, now: time.Now, wake: make(chan struct{}, 1), index: ix}
}

// AddAPIServer adds an address at which the proxy has reached the API server: no Service
// can take it by an externalIP or a load balancer's address. It may be called at any
// time, before and during a run, from any goroutine.
func (w *Watcher) AddAPIServer(a netip.AddrPort) {
	w.change(func(ix *index) { ix.addAPIServer(a) })
}

// SetHostAddresses sets the addresses on the node's interfaces, those of them on links that pods may share
// (service.Node.SharedAddresses), and the broadcast addresses of its networks, each in any order. It may be called at
// any time, before and during a run, from any goroutine.
func (w *Watcher) SetHostAddresses(addrs, shared []netip.Addr, broadcast ...netip.Addr) {
	w.change(func(ix *index) { ix.setHostAddresses(addrs, shared, broadcast) })
}

// SetAdjustments says which endpoints have less than their weight, beside those that the watcher itself sees come. It
// may be called at any time, before and during a run, from any goroutine.
func (w *Watcher) SetAdjustments(a service.Adjustments) {
	w.change(func(ix *index) { ix.builder.SetAdjustments(a) })
}

// SetSlots says how many slots the endpoints of some Services have by feedback. Those of namespaces that
// have used up half of what their changes may take at once stay as they are. It may be called at any time, before and
// during a run, from any goroutine.
func (w *Watcher) SetSlots(of map[service.Name]service.Slotted) {
	w.change(func(ix *index) { ix.builder.SetSlots(ix.affordable(w.now(), of)) })
}

// RoutesChanged tells the watcher that the answer of Options.Networks may have changed. It may be
// called at any time, before and during a run, from any goroutine.
func (w *Watcher) RoutesChanged() {
	w.change(func(ix *index) { ix.unrouted = true })
}

// change edits the index. If the reader of the mailbox has taken the last update, the next one is made at once,
// here: to wake the loop for that would cost a change more than the snapshot does. Otherwise the loop later makes one
// snapshot of all the changes until then.
func (w *Watcher) change(edit func(*index)) {
	now := time.Now()
	w.mu.Lock()
	edit(w.index)
	w.index.retention.Away(w.outage.away, now)
	if w.since.IsZero() {
		w.since = now
	}
	taken, next := w.synced && w.out.Empty(), w.nextEdit()
	if taken {
		w.put()
	}
	more := !taken || w.nextEdit() != next || len(w.index.problems) > 0 || w.outage.news
	w.mu.Unlock()
	if !more {
		return
	}
	select {
	case w.wake <- struct{}{}:
	default: // There is a token already.
	}
}

// loop publishes until ctx ends.
func (w *Watcher) loop(ctx context.Context) {
	for {
		w.mu.Lock()
		next := pace.Soonest(w.nextEdit(), w.bounds.summaryDue())
		w.mu.Unlock()
		var due <-chan time.Time
		if !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			// A command ends with its first snapshot, which may have come before the problems.
			w.mu.Lock()
			problems := w.index.takeProblems()
			w.mu.Unlock()
			w.report(w.bounds.admit(time.Now(), problems))
			return
		case <-w.wake:
			w.publish()
		case now := <-due:
			w.report(w.bounds.summary(now))
			w.change(func(ix *index) {
				ix.endRetention(now)
				ix.reportStrays(now)
			})
		}
	}
}

// nextEdit is when the index changes although its source is silent: Services are retained no longer, strays are old
// enough for a report, and with each snapshot held Services go on and new endpoints have more of their weight. It is
// zero for never. The caller holds the lock.
func (w *Watcher) nextEdit() time.Time {
	return pace.Soonest(w.index.retention.Next(), w.index.straysDue, w.index.due, w.grows)
}

// publish puts the snapshot into the mailbox if it has changed, and then reports the
// problems since the last call.
func (w *Watcher) publish() {
	w.mu.Lock()
	if w.synced {
		w.put()
	}
	problems := w.index.takeProblems()
	behind, answers := w.outage.takeNews()
	w.mu.Unlock()

	w.report(w.bounds.admit(time.Now(), problems))
	if answers {
		w.opts.Answers(behind)
	}
}

// put puts the snapshot into the mailbox if it has changed. The caller holds the lock, so that no older snapshot
// comes after a newer one.
func (w *Watcher) put() {
	w.index.at, w.index.releases = w.now(), w.out.Empty()
	update := service.Update{Since: w.since, Snapshot: w.growing(w.index.flush())}
	changed := update.Snapshot != w.published
	w.published, w.since = update.Snapshot, time.Time{}
	w.covered, update.Changes = w.index.changes, w.index.changes
	update.Triggers, w.index.triggers = w.index.triggers, service.Triggers{}
	if changed {
		w.counted = update.Changes
		w.out.Put(update)
	}
}

// Changes returns how many changes of objects the watcher has seen since the start. It
// may be called from any goroutine.
func (w *Watcher) Changes() service.Changes {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.index.changes
}

// Pending returns how many changes are not in force, if inForce has those of the last
// update in force. Changes that make no difference to its snapshot are not pending. A held Service counts as one. It
// may be called from any goroutine.
func (w *Watcher) Pending(inForce service.Changes) service.Changes {
	w.mu.Lock()
	defer w.mu.Unlock()
	if inForce == w.counted {
		inForce = w.covered
	}
	all := w.index.changes
	held := uint64(0)
	if !w.index.due.IsZero() {
		held = uint64(len(w.index.dirty))
	}
	return service.Changes{Services: all.Services - inForce.Services + held,
		EndpointSlices: all.EndpointSlices - inForce.EndpointSlices}
}

func (w *Watcher) report(problems []Problem) {
	for _, p := range problems {
		w.opts.Report(p)
	}
}
