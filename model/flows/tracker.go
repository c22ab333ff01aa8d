package flows

import (
	"container/heap"
	"encoding/binary"
	"hash/fnv"
	"time"

	"nftproxy/model/service"
)

// Patience is how long a connection may be without an answer before that is its result.
const Patience = 5 * time.Second

const (
	// soon is when the entry of a new connection is asked for first. The kernel has it when the first packet has passed
	// all hooks.
	soon = 200 * time.Millisecond
	// lag is how much later than the entry the message about an answer may say that there is one.
	lag = 200 * time.Millisecond
	// every is the most time from one question to the next: the entry of a reset connection stays for 10 s.
	every = 8 * time.Second
	// least is the least time from one question to the next, but for the first packet's.
	least = 500 * time.Millisecond
	// longest is the most time from one repeated packet to the next (Linux, TCP_RTO_MAX).
	longest = 2 * time.Minute
	// mostEarly bounds the answers that are known before their connection's entry.
	mostEarly = 4096
	// calm is how long there has to be room before more of a Service is remembered again, and pause the least time from
	// one thinning to the next.
	calm, pause = time.Minute, 100 * time.Millisecond
	mostLevel   = 16
)

// Tracker has the connections of a node. It is not safe for concurrent use.
type Tracker struct {
	most int
	seed uint64
	tell func(Change)
	less func(name service.Name, of int)

	seq   uint64
	open  map[Key]*open
	reply map[Key]*open
	due   queue
	early map[Key]early
	order []Key // of early, oldest first
	// refused has the refusals in early that no connection has, by the client alone.
	refused map[Key]Answer
	loads   map[service.Name]*load
	// thinned is when a Service was thinned last.
	thinned time.Time
	ended   ended
	counts  Counts
}

// Counts are totals of a Tracker.
type Counts struct {
	// Thinned is how many were left out since their Service has too many: the weight of others stands for them. Lost is
	// how many were left out for which nothing stands.
	Thinned, Lost uint64
	// Open is how many connections are remembered that have not ended.
	Open int
}

// load is what is remembered of a Service: one of 2^level connections of those in the sample.
type load struct {
	open, level int
	raised      time.Time
}

// open is a connection that has not ended.
type open struct {
	Flow
	key, replyKey Key
	id            uint32
	found         bool
	// seen is Start.Seen, and so are all times that are compared with now. timed says that Begin is Start.At.
	seen  time.Time
	timed bool
	// replied is when the entry first said that there is an answer, while the message about it had not come.
	replied time.Time
	// lasting is the longest time-out of the entry since its state changed. last is when packets had come last, and
	// before the look before that. looked is when the entry was looked at last.
	lasting              time.Duration
	last, before, looked time.Time
	at                   time.Time
	place                int // in the queue
	// level is that of its Service which Weight has.
	level int
}

// early is an answer that came before its connection's entry was known. taken says that a connection has it since.
type early struct {
	Answer
	taken bool
}

// New makes a Tracker that remembers that many open connections at most, and as many ended ones. seed decides which
// ones stay when there are too many. tell is called for each change that settles or ends a flow, and
// less when one of so many connections of a Service is remembered from now on.
func New(most int, seed uint64, tell func(Change), less func(name service.Name, of int)) *Tracker {
	return &Tracker{most: most, seed: seed, tell: tell, less: less, open: map[Key]*open{}, reply: map[Key]*open{},
		early: map[Key]early{}, refused: map[Key]Answer{}, loads: map[service.Name]*load{}, ended: newEnded(most)}
}

// Counts returns the totals so far.
func (t *Tracker) Counts() Counts {
	t.counts.Open = len(t.open)
	return t.counts
}

// Begin takes the first packet of a connection to a Service. A packet that is repeated since nothing let it through
// belongs to the same flow.
func (t *Tracker) Begin(s Start, to Owner) {
	if o := t.open[s.Key]; o != nil {
		if !o.found && o.Cause == s.Cause && o.Result != Answered {
			o.last = s.Seen
			t.plan(o, o.first())
			return
		}
		t.end(o, s.Seen)
	}
	l := t.room(s, to.Service)
	if l == nil {
		return
	}
	t.seq++
	o := &open{key: s.Key, seen: s.Seen, last: s.Seen, before: s.Seen, looked: s.Seen, place: -1, level: l.level}
	o.Flow = Flow{ID: t.seq, Begin: s.At, Protocol: s.Protocol.String(),
		Client: s.Src, Service: to.Service, Port: to.Port, Way: to.Way, Address: s.Dst, Result: Waiting, Cause: s.Cause,
		Weight: s.Rate << l.level}
	if o.timed = !s.At.IsZero(); !o.timed {
		o.Begin = s.Seen
	}
	l.open++
	t.open[s.Key] = o
	if s.Cause != "" {
		o.Result = Dropped
		if s.Refused {
			o.Result = Refused
		}
		t.settle(o)
	} else {
		t.change(o)
	}
	t.plan(o, o.first())
}

// first is when a connection is due after a first packet. What the rules refuse or drop has no entry to ask for.
func (o *open) first() time.Time {
	if o.Cause != "" {
		return o.given()
	}
	return o.last.Add(soon)
}

// given is when the client of a dropped connection has given up: clients double their pauses.
func (o *open) given() time.Time {
	return o.last.Add(4*time.Second + min(longest, 2*o.last.Sub(o.seen)))
}

// room makes room for a connection; nil if it is not to be remembered.
func (t *Tracker) room(s Start, name service.Name) *load {
	l := t.loads[name]
	if l == nil {
		l = &load{}
	}
	if l.level > 0 && len(t.open) < t.most/4 && s.Seen.Sub(l.raised) > calm {
		l.level, l.raised = l.level-1, s.Seen
	}
	if !t.in(s.Key, l.level) {
		t.counts.Thinned++
		return nil
	}
	if len(t.open) >= t.most {
		t.thin(s.Seen)
	}
	switch {
	case !t.in(s.Key, l.level):
		t.counts.Thinned++
		return nil
	case len(t.open) >= t.most:
		t.counts.Lost++
		return nil
	}
	t.loads[name] = l
	return l
}

// in says whether a connection is one of those that stay at a level.
func (t *Tracker) in(k Key, level int) bool {
	if level == 0 {
		return true
	}
	sum := fnv.New64a()
	var b [64]byte
	text := binary.LittleEndian.AppendUint64(b[:0], t.seed)
	text = append(text, byte(k.Protocol))
	text, _ = k.Src.AppendBinary(text)
	text, _ = k.Dst.AppendBinary(text)
	_, _ = sum.Write(text)
	x := sum.Sum64()
	return (x^x>>32)&(1<<level-1) == 0
}

// thin halves what is remembered of the busy Services of the namespace that has most, so that others keep theirs. Those
// that stay stand for those that go.
func (t *Tracker) thin(now time.Time) {
	if now.Sub(t.thinned) < pause {
		return
	}
	t.thinned = now
	for before := len(t.open); len(t.open) == before; {
		busy := t.busy(now)
		if len(busy) == 0 { // All levels are at their end.
			return
		}
		for name, l := range busy {
			l.level, l.raised = l.level+1, now
			t.less(name, 1<<l.level)
		}
		for _, o := range t.open {
			l := busy[o.Service]
			if l == nil {
				continue
			}
			if !t.in(o.key, l.level) {
				t.counts.Thinned++
				t.forget(o)
			} else if o.level < l.level { // It may be from a time when the level was this one.
				o.Weight, o.level = o.Weight*2, l.level
			}
		}
	}
}

// busy returns the Services of the namespace with most open connections that have at least half as many as its Services
// have on average: together these have half of the namespace's at least, however it divides them.
func (t *Tracker) busy(now time.Time) map[service.Name]*load {
	type total struct{ open, services int }
	totals := map[string]total{}
	for name, l := range t.loads {
		switch space, _ := name.Split(); {
		case l.open == 0 && now.Sub(l.raised) > calm:
			delete(t.loads, name)
		case l.open > 0 && l.level < mostLevel:
			totals[space] = total{totals[space].open + l.open, totals[space].services + 1}
		}
	}
	most := ""
	for space, n := range totals {
		if n.open > totals[most].open || n.open == totals[most].open && space < most {
			most = space
		}
	}
	list := map[service.Name]*load{}
	for name, l := range t.loads {
		space, _ := name.Split()
		if n := totals[space]; space == most && l.level < mostLevel && l.open > 0 && 2*l.open*n.services >= n.open {
			list[name] = l
		}
	}
	return list
}

// Answer takes the first packet of an answer.
func (t *Tracker) Answer(a Answer) {
	if o := t.reply[a.Reply]; o != nil {
		t.answered(o, a)
		return
	}
	first, known := t.early[a.Reply]
	if known && !first.taken && a.Seen.Sub(first.Seen) <= Patience {
		return
	}
	if !known && len(t.order) == mostEarly {
		delete(t.early, t.order[0])
		if c := clientOf(t.order[0]); t.refused[c].Reply == t.order[0] {
			delete(t.refused, c)
		}
		t.order = t.order[1:]
	}
	if !known {
		t.order = append(t.order, a.Reply)
	}
	if t.early[a.Reply] = (early{Answer: a}); a.Refused {
		t.refused[clientOf(a.Reply)] = a
	}
}

// taken is for an answer of early that a connection has: the next one with the same addresses is another connection's.
func (t *Tracker) taken(a Answer) {
	t.early[a.Reply] = early{Answer: a, taken: true}
	if c := clientOf(a.Reply); t.refused[c].Reply == a.Reply {
		delete(t.refused, c)
	}
}

// clientOf is the key of an answer without the endpoint.
func clientOf(reply Key) Key { return Key{Protocol: reply.Protocol, Dst: reply.Dst} }

// answered takes an answer whose connection is known. Only the first one counts; one after Patience still says when.
func (t *Tracker) answered(o *open, a Answer) {
	if a.Seen.Before(o.seen) || o.Result != Waiting && o.Result != Unanswered {
		return
	}
	if o.timed && !a.At.IsZero() {
		seconds := max(0, a.At.Sub(o.Begin).Seconds())
		o.AnswerSeconds = &seconds
	}
	if o.Result = Answered; a.Refused {
		o.Result = Refused
	}
	t.settle(o)
}

// Next returns when Due has something; the zero time for never.
func (t *Tracker) Next() time.Time {
	if len(t.due) == 0 {
		return time.Time{}
	}
	return t.due[0].at
}

// Due returns connections whose entries to ask for now, at most so many. Each of them needs a call of Found or Retry.
func (t *Tracker) Due(now time.Time, most int) (list []Key) {
	for len(t.due) > 0 && len(list) < most && !t.due[0].at.After(now) {
		o := t.due[0]
		if o.Cause != "" {
			t.end(o, o.last)
			continue
		}
		heap.Pop(&t.due)
		list = append(list, o.key)
	}
	return list
}

// Retry is Found for a connection whose entry could not be read: it is due again.
func (t *Tracker) Retry(now time.Time, k Key) {
	if o := t.open[k]; o != nil {
		t.plan(o, now.Add(least))
	}
}

// Found takes the entry of a connection of Due, nil if there is none.
func (t *Tracker) Found(now time.Time, k Key, e *Entry) {
	o := t.open[k]
	switch {
	case o == nil:
	case e == nil && o.found, e != nil && o.found && e.ID != o.id:
		t.end(o, o.last)
	case e == nil:
		t.missing(o, now)
	default:
		t.look(o, now, e)
	}
}

// missing is for a connection that has no entry although its first packet came. The kernel has removed that of a TCP
// connection whose only answer was a reset (Linux, nf_conntrack_tcp_packet).
func (t *Tracker) missing(o *open, now time.Time) {
	if a, ok := t.refused[Key{Protocol: o.key.Protocol, Dst: o.key.Src}]; ok && o.Result == Waiting &&
		!a.Seen.Before(o.seen) {
		t.taken(a)
		o.Endpoint = a.Reply.Src
		t.answered(o, a)
		t.end(o, a.Seen)
		return
	}
	if patient := o.seen.Add(Patience); o.Result == Waiting && patient.After(now) {
		t.plan(o, earlier(now.Add(least), patient)) // Another program may only hold the packet (NFQUEUE).
		return
	}
	if o.Result == Waiting {
		o.Result = Dropped
		t.settle(o)
	}
	if gone := o.given(); gone.After(now) {
		t.plan(o, gone)
		return
	}
	t.end(o, o.last)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// look takes what an entry says.
func (t *Tracker) look(o *open, now time.Time, e *Entry) {
	if !o.found {
		o.found, o.id, o.Endpoint = true, e.ID, e.Endpoint
		o.replyKey = Key{o.key.Protocol, e.Endpoint, o.key.Src}
		t.reply[o.replyKey] = o
		if o.Result == Dropped { // A repeated packet has passed.
			o.Result = Waiting
		}
		if a, ok := t.early[o.replyKey]; ok && !a.taken {
			t.taken(a.Answer)
			t.answered(o, a.Answer)
		}
	}
	if e.PacketsFrom+e.PacketsTo != o.PacketsFrom+o.PacketsTo {
		// A packet that leaves the state has the time-out begin again, so now it is no shorter than by what has passed.
		if e.Timeout < o.lasting-now.Sub(o.looked)-time.Second {
			o.lasting = e.Timeout
		}
		o.last, o.before = now, o.looked
	}
	o.looked = now
	o.PacketsFrom, o.BytesFrom, o.PacketsTo, o.BytesTo = e.PacketsFrom, e.BytesFrom, e.PacketsTo, e.BytesTo
	o.lasting = max(o.lasting, e.Timeout)
	if o.Result == Waiting && e.Replied && o.replied.IsZero() {
		o.replied = now
		t.plan(o, now.Add(lag))
		return
	}
	t.judge(o, now, e)
	switch {
	case e.Closing > 0:
		t.end(o, o.ending(now.Add(min(0, e.Timeout-e.Closing))))
	case e.Timeout <= time.Second:
		t.end(o, o.ending(now.Add(e.Timeout-o.lasting)))
	default:
		next := now.Add(max(least, min(every, e.Timeout-time.Second)))
		if patient := o.seen.Add(Patience); o.Result == Waiting && patient.After(now) {
			next = earlier(next, patient)
		}
		t.plan(o, next)
	}
}

// ending is when a connection has ended that by its entry's time-out has at a moment: no earlier than its last packet.
func (o *open) ending(at time.Time) time.Time {
	if at.Before(o.before) {
		return o.before
	}
	return at
}

// judge settles the result by the entry, where no packet has told it.
func (t *Tracker) judge(o *open, now time.Time, e *Entry) {
	switch {
	case o.Result != Waiting && o.Result != Unanswered:
	case e.Replied:
		o.Result = Answered
		t.settle(o)
	case o.Result == Waiting && now.Sub(o.seen) >= Patience:
		o.Result = Unanswered
		t.settle(o)
	}
}

// settle tells of a flow whose result has changed.
func (t *Tracker) settle(o *open) {
	first := !o.settled
	o.settled = true
	t.change(o)
	if first {
		t.tell(Change{Flow: o.Flow, Settled: true})
	}
}

func (t *Tracker) change(o *open) {
	t.seq++
	o.Seq = t.seq
}

// end ends a flow at a moment.
func (t *Tracker) end(o *open, at time.Time) {
	t.forget(o)
	first := !o.settled
	if o.Result == Waiting {
		switch {
		case !o.replied.IsZero():
			o.Result = Answered
		case o.found:
			o.Result = Unanswered
		default:
			o.Result = Dropped
		}
	}
	o.Ended, o.settled, o.Seconds = true, true, max(0, at.Sub(o.seen).Seconds())
	t.change(o)
	t.ended.add(o.Flow)
	t.tell(Change{Flow: o.Flow, Settled: first, Finished: true})
}

// forget takes a connection out of all indexes.
func (t *Tracker) forget(o *open) {
	delete(t.open, o.key)
	if t.reply[o.replyKey] == o {
		delete(t.reply, o.replyKey)
	}
	if o.place >= 0 {
		heap.Remove(&t.due, o.place)
	}
	l := t.loads[o.Service]
	if l.open--; l.open == 0 && l.level == 0 {
		delete(t.loads, o.Service)
	}
}

// plan has the entry asked for at a time.
func (t *Tracker) plan(o *open, at time.Time) {
	o.at = at
	if o.place < 0 {
		heap.Push(&t.due, o)
	} else {
		heap.Fix(&t.due, o.place)
	}
}

// Since returns a moment by the clock of answers: of the flows that began after it, none has been forgotten. It is the
// zero time while no flow at all has been.
func (t *Tracker) Since() time.Time { return t.ended.since }

// SinceIn is Since for the flows to Services of a namespace alone; a busy one has others forgotten last.
func (t *Tracker) SinceIn(namespace string) time.Time {
	if at, known := t.ended.sinceIn[namespace]; known && at.After(t.ended.others) {
		return at
	}
	return t.ended.others
}

// List returns what has changed after a Seq, in any order: 0 for all that is remembered.
func (t *Tracker) List(after uint64) (list []Flow) {
	for _, o := range t.open {
		if o.Seq > after {
			list = append(list, o.Flow)
		}
	}
	for _, of := range t.ended.queue {
		for _, f := range of.flows {
			if f.Seq > after {
				list = append(list, f)
			}
		}
	}
	return list
}

// queue is a heap of connections by the time when their entries are due.
type queue []*open

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push is for package heap.
func (q *queue) Push(x any) {
	o := x.(*open)
	o.place = len(*q)
	*q = append(*q, o)
}

// Pop is for package heap.
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	last.place = -1
	*q = (*q)[:len(*q)-1]
	return last
}
