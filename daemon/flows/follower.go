// Package flows follows a sample of the connections to Services: it listens to what the rules tell of them
// (nft/ruleset), asks connection tracking for their entries, and lets model/flows make records of them. It delays
// nothing: what comes faster than it can be taken is lost, and counted.
package flows

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/florianl/go-nflog/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/model/flows"
	"nftproxy/model/service"
	"nftproxy/nft/flowtable"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// Most is how many open connections are remembered, and how many ended ones beside them.
const Most = 4096

// Config is what a Follower works with.
type Config struct {
	// Table has the entries of connections. Nobody else waits for its sockets.
	Table interface {
		Find(ctx context.Context, p service.Protocol, original conntrack.Tuple) (f conntrack.Flow, found bool, err error)
	}
	// Services is the name of the tables of Services.
	Services string
	// Mode is the share of connections of Services that do not ask for one.
	Mode service.Flows
	// Index says which Service has an address and port. Nobody else uses it.
	Index *conntrack.Index
	// Files are the kernel's settings, of which the time-outs of ended connections are read.
	Files conntrack.Files
	// Observe is called when a result is known, and when a connection ends, by several goroutines. It must not wait.
	Observe func(flows.Change)
	// Thinned is called at most once a minute: since the last call, fewer connections of so many Services are remembered,
	// of one of them only one of so many beside its share. It must not wait.
	Thinned func(services int, worst service.Name, of int)
	// Failed is told why something is not heard, and nil while all is heard. It must not wait.
	Failed func(error)
}

const (
	// batch is how many entries are asked for without a pause, and rest the pause between two batches: some 5 us each, so
	// a tenth of a core at most.
	batch, rest = 64, 5 * time.Millisecond
	// retry is the time until a failed try is repeated, and look the time from one look at the table for answers to the
	// next: another program may remove it.
	retry, look = 10 * time.Second, time.Second
	// thinnedPause is the least time from one report of Thinned to the next.
	thinnedPause = time.Minute
	// together is how many messages the kernel sends at once, and wait how long one waits for others: the process's cost
	// is mostly that of waking up.
	together, wait = 64, 100 * time.Millisecond
	// readBuffer is room for messages that wait, in bytes.
	readBuffer = 4 << 20
)

// Follower follows connections.
type Follower struct {
	config    Config
	snapshots service.Newest
	wake      chan struct{}
	lost      atomic.Uint64
	listened  bool // once; of Run alone
	began     time.Time
	// timeWait and closed are the kernel's time-outs of connections that have ended.
	timeWait, closed time.Duration

	served atomic.Pointer[service.Snapshot] // the newest, which the index may not have yet; nil before the first
	// silent is why nothing is heard; nil while something may be.
	silent atomic.Pointer[error]

	// indexing is of the index: what changes many Services delays no list, and no sync. It is taken without mu.
	indexing sync.Mutex

	mu      sync.Mutex // of what follows
	tracker *flows.Tracker
	// changes wait for locked to tell of them, and thinned has the levels that Thinned has not told yet.
	changes []flows.Change
	thinned map[service.Name]int
}

// locked does something with the tracker, and then tells of the changes. The lock is free by then, since what observes
// has a lock of its own.
func (f *Follower) locked(do func()) {
	f.mu.Lock()
	do()
	changes := f.changes
	f.changes = nil
	f.mu.Unlock()
	for _, c := range changes {
		f.config.Observe(c)
	}
}

// first takes the first snapshot: without one no packet belongs to a Service.
func (f *Follower) first(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case s := <-f.snapshots:
		f.update(*s)
		return nil
	}
}

func (f *Follower) update(s service.Snapshot) {
	f.indexing.Lock()
	defer f.indexing.Unlock()
	f.config.Index.Update(s)
	f.config.Index.Forget(f.config.Index.Epoch()) // Nobody asks it what is stale.
}

// New makes a Follower.
func New(c Config) *Follower {
	f := &Follower{config: c, snapshots: service.NewNewest(), wake: make(chan struct{}, 1),
		thinned: map[service.Name]int{}, began: time.Now()}
	f.tracker = flows.New(Most, rand.Uint64(), func(c flows.Change) { f.changes = append(f.changes, c) },
		func(name service.Name, of int) { f.thinned[name] = max(f.thinned[name], of) })
	return f
}

// Notify gives the snapshot that the rules serve now. One call has to end before the next. It waits for nothing.
func (f *Follower) Notify(s service.Snapshot) {
	f.served.Store(&s)
	f.snapshots.Put(s)
}

// Counts returns totals: Lost has messages that were lost, too.
func (f *Follower) Counts() flows.Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.tracker.Counts()
	c.Lost += f.lost.Load()
	return c
}

// List returns what has changed after a Seq, in the order of the changes: 0 for all that is remembered.
func (f *Follower) List(after uint64) []flows.Flow {
	f.mu.Lock()
	list := f.tracker.List(after)
	f.mu.Unlock() // No packet waits while they are sorted.
	slices.SortFunc(list, func(a, b flows.Flow) int { return cmp.Compare(a.Seq, b.Seq) })
	return list
}

// since returns moments: of the flows that began after all, none has been forgotten, and of those of a namespace none
// after in.
func (f *Follower) since(namespace string) (all, in time.Time) {
	f.mu.Lock()
	all, in = f.tracker.Since(), f.tracker.SinceIn(namespace)
	f.mu.Unlock()
	for _, at := range []*time.Time{&all, &in} {
		if at.Before(f.began) {
			*at = f.began
		}
		*at = at.UTC()
	}
	return all, in
}

// Of returns what is remembered of a Service's connections. Of those that began after since, none has been forgotten.
func (f *Follower) Of(name service.Name) (list []flows.Flow, since time.Time) {
	list = slices.DeleteFunc(f.List(0), func(one flows.Flow) bool { return one.Service != name })
	namespace, _ := name.Split()
	_, since = f.since(namespace)
	return list, since
}

// Silence says why nothing is heard; nil ends that.
func (f *Follower) Silence(err error) {
	if err == nil {
		f.silent.Store(nil)
	} else {
		f.silent.Store(&err)
	}
}

// Silent says why nothing is heard; empty while something may be.
func (f *Follower) Silent() string {
	if err := f.silent.Load(); err != nil {
		return (*err).Error()
	}
	return ""
}

// Run works until the context ends, and then returns nil.
func (f *Follower) Run(ctx context.Context) error {
	if f.first(ctx) != nil {
		return nil
	}
	for ctx.Err() == nil {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		f.Silence(err)
		f.config.Failed(err)
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
	return nil
}

// follow listens until the socket fails. Without the table for answers, or an entry, the rest goes on.
func (f *Follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	group := ruleset.FlowGroup(f.config.Services)
	log, err := nflog.Open(&nflog.Config{Group: group, Copymode: nflog.CopyPacket, Bufsize: flowtable.Bytes,
		QThresh: together, Timeout: uint32(wait / (10 * time.Millisecond))})
	if err != nil {
		return fmt.Errorf("listen to connections: %w", err)
	}
	defer log.Close()
	defer cancel(nil)                     // before Close, which waits for the end
	_ = log.Con.SetReadBuffer(readBuffer) // as much as is allowed
	err = log.RegisterWithErrorFunc(ctx, f.take, func(err error) int {
		if errors.Is(err, unix.ENOBUFS) {
			f.lost.Add(1)
			return 0
		}
		if op := (*netlink.OpError)(nil); errors.As(err, &op) && op.Timeout() && ctx.Err() == nil {
			return 0
		}
		cancel(fmt.Errorf("listen to connections: %w", err))
		return 1
	})
	if err != nil {
		return fmt.Errorf("listen to connections by group %d of nfnetlink_log (does another program?): %w", group, err)
	}
	f.Silence(nil)
	err = flowtable.Replace(f.config.Services, ruleset.FlowLabel, group, 0)
	if err != nil || !f.listened { // After a failure only some time without another one means that all is heard.
		f.config.Failed(err)
	}
	f.listened = true
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer conn.Close()
	return f.work(ctx, &keeper{conn: conn, files: f.config.Files, services: f.config.Services, group: group})
}

// keeper keeps the table for answers, and the counters that it needs.
type keeper struct {
	conn     *kernel.Conn
	files    conntrack.Files
	services string
	group    uint16
	// kept is the generation of the ruleset that had the table; 0 if none is known to.
	kept uint32
}

// errUncounted says that the counters were off and are on again.
var errUncounted = errors.New("another program has switched net.netfilter.nf_conntrack_acct off: bytes and first " +
	"answers of some connections are missing")

// keep looks at the table if any process has changed the ruleset since it was there. With the table come the counters.
func (k *keeper) keep() error {
	if k.files.Uncounted() {
		return cmp.Or(flowtable.Replace(k.services, ruleset.FlowLabel, k.group, 0), errUncounted)
	}
	now, err := k.conn.Generation()
	if err != nil || now == k.kept {
		return err
	}
	made, err := flowtable.Keep(k.services, ruleset.FlowLabel, k.group, 0)
	if err == nil && !made {
		k.kept = now
	}
	return err
}

// work takes snapshots, and asks for entries when they are due.
func (f *Follower) work(ctx context.Context, table *keeper) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	keep, tell := time.NewTicker(look), time.NewTicker(retry)
	defer keep.Stop()
	defer tell.Stop()
	var told time.Time // of Thinned
	var failed error   // the last one since Failed was told
	f.readTimeouts()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case s := <-f.snapshots:
			f.update(*s)
		case <-keep.C:
			if err := table.keep(); err != nil {
				failed = err
			}
		case <-tell.C:
			f.config.Failed(failed)
			failed = nil
			f.readTimeouts()
			if time.Since(told) >= thinnedPause && f.tellThinned() {
				told = time.Now()
			}
		case <-f.wake:
		case <-timer.C:
			if err := f.ask(ctx); err != nil {
				failed = err
			}
		}
		f.mu.Lock()
		next := f.tracker.Next()
		f.mu.Unlock()
		if !next.IsZero() {
			timer.Reset(max(rest, time.Until(next)))
		}
	}
}

// tellThinned tells of the Services that are followed less since the last time, and says whether there were any.
func (f *Follower) tellThinned() bool {
	f.mu.Lock()
	list := f.thinned
	f.thinned = map[service.Name]int{}
	f.mu.Unlock()
	if len(list) == 0 {
		return false
	}
	worst := slices.MaxFunc(slices.Collect(maps.Keys(list)), func(a, b service.Name) int {
		return cmp.Or(cmp.Compare(list[a], list[b]), cmp.Compare(b, a))
	})
	f.config.Thinned(len(list), worst, list[worst])
	return true
}

// take takes a message. A non-zero result would end the listening.
func (f *Follower) take(m nflog.Attribute) int {
	if m.Payload == nil || m.Prefix == nil {
		return 0
	}
	p, ok := parse(*m.Payload)
	if !ok {
		return 0
	}
	now := time.Now()
	var at time.Time
	if m.Timestamp != nil { // packets of the node itself have none
		at = *m.Timestamp
	}
	prefix := strings.TrimRight(*m.Prefix, "\x00")
	if prefix == flowtable.AnswerPrefix {
		f.locked(func() { f.answer(p, at, now) })
		return 0
	}
	if said, ok := ruleset.ParseFlowPrefix(prefix); ok && !p.icmp {
		f.begin(flows.Start{Key: p.Key, At: at, Seen: now}, said)
	}
	return 0
}

func (f *Follower) answer(p packet, at, seen time.Time) {
	a := flows.Answer{Reply: p.Key, At: at, Seen: seen, Refused: p.reset || p.icmp}
	if p.icmp { // The error has the packet that it is for.
		a.Reply.Src, a.Reply.Dst = p.Dst, p.Src
	}
	f.tracker.Answer(a)
}

func (f *Follower) begin(s flows.Start, said ruleset.FlowPrefix) {
	f.indexing.Lock()
	owner, svc := f.owner(s.Key)
	f.indexing.Unlock()
	if svc == nil || f.config.Mode.Of(svc) == 0 {
		return
	}
	s.Rate, s.Cause, s.Refused = said.Rate, string(said.Cause), said.Cause != "" && !said.Cause.Drops()
	f.locked(func() { f.tracker.Begin(s, owner) })
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// owner finds the Service by the newest snapshot; nil if none has the address.
func (f *Follower) owner(k flows.Key) (flows.Owner, *service.Service) {
	to := conntrack.Flow{Protocol: k.Protocol, Original: conntrack.Tuple{Src: k.Src, Dst: k.Dst}}
	svc, port, ok := f.config.Index.Owner(to)
	if !ok {
		if svc = f.config.Index.HasClusterIP(k.Dst.Addr()); svc == nil {
			return flows.Owner{}, nil
		}
		return flows.Owner{Service: svc.Name, Way: flows.ByClusterIP}, svc
	}
	return flows.Owner{Service: svc.Name, Port: port.Label(), Way: way(svc, k.Dst.Addr())}, svc
}

func way(s *service.Service, a netip.Addr) flows.Way {
	switch {
	case slices.Contains(s.ClusterIPs, a):
		return flows.ByClusterIP
	case slices.Contains(s.LoadBalancerIPs, a):
		return flows.ByLoadBalancer
	case slices.Contains(s.ExternalIPs, a):
		return flows.ByExternalIP
	}
	return flows.ByNodePort
}

// ask asks for the entries that are due, a batch of them. After an error the others are due again later.
func (f *Follower) ask(ctx context.Context) error {
	var list []flows.Key
	f.locked(func() { list = f.tracker.Due(time.Now(), batch) })
	for i, k := range list {
		found, ok, err := f.config.Table.Find(ctx, k.Protocol, conntrack.Tuple{Src: k.Src, Dst: k.Dst})
		if err != nil {
			f.locked(func() {
				for _, k := range list[i:] {
					f.tracker.Retry(time.Now(), k)
				}
			})
			return err
		}
		var e *flows.Entry
		if ok {
			e = f.entry(&found)
		}
		f.locked(func() { f.tracker.Found(time.Now(), k, e) })
	}
	return nil
}

// The time-outs of connections that have ended, where the kernel does not say (Linux, tcp_timeouts of
// nf_conntrack_proto_tcp.c).
const (
	timeWait = 2 * time.Minute
	closed   = 10 * time.Second
)

// readTimeouts reads the time-outs of connections that have ended.
func (f *Follower) readTimeouts() {
	f.timeWait = f.config.Files.TCPTimeout("time_wait", timeWait)
	f.closed = f.config.Files.TCPTimeout("close", closed)
}

func (f *Follower) entry(c *conntrack.Flow) *flows.Entry {
	e := &flows.Entry{ID: c.ID, Endpoint: c.Reply.Src, Replied: c.Status&conntrack.SeenReply != 0,
		Timeout: c.Timeout, PacketsFrom: c.Sent.Packets, BytesFrom: c.Sent.Bytes,
		PacketsTo: c.Received.Packets, BytesTo: c.Received.Bytes}
	switch c.TCPState {
	case conntrack.TCPTimeWait:
		e.Closing = max(f.timeWait, c.Timeout)
	case conntrack.TCPClosed:
		e.Closing = max(f.closed, c.Timeout)
	}
	return e
}
