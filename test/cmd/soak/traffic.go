package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"nftproxy/test/lib/testnet"
)

// traffic is all the clients. They ask random questions, of which the script knows
// nothing, and judge each answer by the book.
type traffic struct {
	w       *world
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	ports   atomic.Uint32 // source ports of UDP given out

	once    sync.Once
	failed  chan struct{} // closed once failure is set
	failure error

	flows   []*flow
	witness witness
	// asked counts the questions of each client that ended.
	asked []atomic.Uint64
}

// How many clients there are, and the pause of each before its next question.
const (
	newClients   = 12
	flowsOfEach  = 10
	betweenAsks  = 40 * time.Millisecond
	betweenSteps = 150 * time.Millisecond
)

// How long a client waits. Where an answer has to come, a busy machine may take its time.
const (
	longest  = 40 * time.Second
	shortest = 400 * time.Millisecond
)

func startTraffic(w *world) *traffic {
	t := &traffic{w: w, failed: make(chan struct{}), asked: make([]atomic.Uint64, newClients+1)}
	t.ctx, t.cancel = context.WithCancel(w.ctx)
	t.ports.Store(rand.Uint32())
	for i := range newClients {
		t.running.Go(func() { t.repeat(i, func() { t.askOnce(t.pick(), w.Pod("client").NS) }) })
	}
	t.running.Go(func() { t.witness.run(t) })
	t.running.Go(func() { (&sticky{t: t, last: map[Question]remembered{}}).run(newClients) })
	for i := range 2 * flowsOfEach {
		f := &flow{t: t, tcp: i%2 == 0}
		t.flows = append(t.flows, f)
		t.running.Go(f.run)
	}
	return t
}

// fail keeps the first failure.
func (t *traffic) fail(format string, args ...any) {
	t.once.Do(func() {
		t.failure = failed(format, args...)
		close(t.failed)
	})
}

func (t *traffic) stop() {
	t.cancel()
	t.running.Wait()
}

// repeat has a client ask until the traffic ends.
func (t *traffic) repeat(client int, ask func()) {
	tick := time.NewTicker(betweenAsks)
	defer tick.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
			ask()
			t.asked[client].Add(1)
		}
	}
}

// pick returns a random question, mostly one that is served or refused.
func (t *traffic) pick() Question {
	all := t.w.book.Questions()
	for {
		q := all[rand.IntN(len(all))]
		if t.w.book.Now(q).Fate != Unserved || rand.IntN(8) == 0 {
			return q
		}
	}
}

// from is the namespace of a client; pods differ.
func (t *traffic) from(q Question, pod *testnet.Namespace) *testnet.Namespace {
	switch q.Client {
	case fromNode:
		return t.w.Node
	case fromOutside:
		return t.w.Outside
	}
	return pod
}

// askOnce asks by a new connection, judges the answer, and returns it with the time of
// the question.
func (t *traffic) askOnce(q Question, pod *testnet.Namespace) (Answer, time.Time) {
	asked := time.Now()
	began := asked
	fate := t.w.book.Now(q).Fate
	var answer Answer
	var again int
	var err error
	if q.Protocol == testnet.TCP {
		answer, again, err = t.askTCP(q, pod, fate)
	} else {
		answer, began, again, err = t.askUDP(q, pod, fate)
	}
	if t.ctx.Err() != nil {
		return Answer{}, began
	}
	if err != nil {
		// A new connection that breaks before its answer is a broken one.
		answer = Answer{Kind: Broken}
	}
	now := time.Now()
	v := t.w.book.Judge(q, answer, began, now)
	t.w.count.question(q.Protocol, answer, v, again)
	switch {
	case v.Wrong != "":
		t.fail("a new connection went wrong: %s (error: %v)", v.Wrong, err)
	case answer.Kind != Silent && t.silent(q, asked, now):
		t.fail("a new connection was answered after %v: %v asked at %s, %v; pods themselves answered after %v at the most",
			now.Sub(asked).Round(time.Millisecond),
			q, asked.Format("15:04:05.000"), answer, t.witness.delay(asked, now).Round(time.Millisecond))
	}
	return answer, began
}

// silent says whether a client had no answer between two times although one thing was
// expected all the time, the tables were whole and the machine was quick enough.
func (t *traffic) silent(q Question, from, to time.Time) bool {
	return t.witness.tooLong(from, to) && !t.w.book.Judge(q, Answer{Kind: Silent}, from, to).Moving
}

func (t *traffic) askTCP(q Question, pod *testnet.Namespace, fate Fate) (Answer, int, error) {
	timeout := longest
	if fate == Unserved {
		timeout = shortest
	}
	got, err := t.from(q, pod).Ask(t.ctx, testnet.TCP, q.To, timeout)
	if err != nil {
		return Answer{}, 0, err
	}
	again := max(0, got.Attempts-1)
	switch got.Outcome {
	case testnet.Answered:
		return Answer{Kind: Answered, Pod: got.ID, Source: source(got.Local.Addr(), got.Peer.Addr())}, again,
			nil
	case testnet.TimedOut:
		return Answer{Kind: Silent}, again, nil
	}
	return Answer{Kind: Rejected}, again, nil
}

func (t *traffic) askUDP(q Question, pod *testnet.Namespace,
	fate Fate) (a Answer, sent time.Time, again int, err error) {
	d, err := openUDP(t.ctx, t.from(q, pod), t.freshSource(q), q.To)
	if err != nil {
		return a, time.Now(), 0, err
	}
	defer d.conn.Close()
	if fate == Unserved {
		return d.ask(shortest, 1, nil)
	}
	return d.ask(resendPeriod, int(longest/resendPeriod), func() bool {
		return t.ctx.Err() == nil && t.w.book.Now(q).Fate == Served
	})
}

// freshSource returns a source whose port no recent question had: otherwise connection
// tracking would take the datagram for part of an earlier flow.
func (t *traffic) freshSource(q Question) string {
	const first, ports = 10000, 20000 // below those that the kernel gives out
	address := netip.IPv4Unspecified()
	if q.To.Addr().Is6() {
		address = netip.IPv6Unspecified()
	}
	return netip.AddrPortFrom(address, uint16(first+t.ports.Add(1)%ports)).String()
}

// calm returns once each client has asked a few more questions.
func (t *traffic) calm(patience time.Duration) error {
	const more = 2
	deadline := time.After(patience)
	for i := range t.asked {
		for from := t.asked[i].Load(); t.asked[i].Load() < from+more; {
			select {
			case <-t.failed:
				return t.failure
			case <-t.ctx.Done():
				return t.ctx.Err()
			case <-deadline:
				return fmt.Errorf("client %d does not go on", i)
			case <-time.After(betweenAsks):
			}
		}
	}
	return nil
}

// awaitFlows returns once each open UDP flow has had an answer that is right by now.
func (t *traffic) awaitFlows(since time.Time, patience time.Duration) error {
	deadline := time.After(patience)
	for _, f := range t.flows {
		for !f.followed(since) {
			select {
			case <-t.failed:
				return t.failure
			case <-t.ctx.Done():
				return t.ctx.Err()
			case <-deadline:
				return failed("%v after the tables were right, an open flow has not followed: %s", patience, f)
			case <-time.After(betweenAsks):
			}
		}
	}
	return nil
}

// sticky is a client of its own address that asks the Services with session affinity, one
// question at a time, and checks that it is remembered.
type sticky struct {
	t    *traffic
	last map[Question]remembered
}

type remembered struct {
	pod string
	at  time.Time
}

func (s *sticky) run(client int) {
	s.t.repeat(client, func() {
		var asked []Question
		for _, q := range s.t.w.book.Questions() {
			if q.Client == fromPod && s.t.w.book.Now(q).Affinity > 0 {
				asked = append(asked, q)
			}
		}
		if len(asked) == 0 {
			return
		}
		q := asked[rand.IntN(len(asked))]
		answer, at := s.t.askOnce(q, s.t.w.Pod("sticky").NS)
		if answer.Kind != Answered {
			delete(s.last, q)
			return
		}
		before, known := s.last[q]
		if known && answer.Pod != before.pod && s.t.w.book.Sticks(q, before.pod, before.at, time.Now()) {
			s.t.fail("%v: session affinity was lost: answered by %s at %s, and by %s at %s", q,
				before.pod, before.at.Format("15:04:05.000"), answer.Pod, at.Format("15:04:05.000"))
		}
		if known {
			s.t.w.count.add("connections of a remembered client")
		}
		s.last[q] = remembered{answer.Pod, at}
	})
}
