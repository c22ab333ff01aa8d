package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"nftproxy/test/lib/testnet"
)

// flow is a client with one connection, or flow of datagrams, that stays open for a while;
// then it opens another one.
type flow struct {
	t   *traffic
	tcp bool

	mu sync.Mutex
	// question is what is open now, if open; answer and asked are of the last step.
	question Question
	open     bool
	answer   Answer
	asked    time.Time
}

// entryLife is less than the kernel keeps the entry of a UDP flow without packets. Only such
// an entry keeps a flow with its pod.
const entryLife = udpTimeout - 10*time.Second

// lifetime is how long an open connection is kept.
func lifetime() time.Duration { return time.Second + rand.N(90*time.Second) }

func (f *flow) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("%v: %v at %s; want %v", f.question, f.answer, f.asked.Format("15:04:05.000"),
		f.t.w.book.Now(f.question))
}

// followed says whether the flow has had an answer since that is right by now. TCP does not
// follow: an open connection stays where it is.
func (f *flow) followed(since time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tcp || !f.open || f.asked.After(since) && f.t.w.book.Now(f.question).Right(f.answer)
}

func (f *flow) run() {
	for f.t.ctx.Err() == nil {
		q := f.t.pick()
		if f.tcp != (q.Protocol == testnet.TCP) || f.t.w.book.Now(q).Fate != Served {
			f.pause(betweenAsks)
			continue
		}
		ctx, cancel := context.WithTimeout(f.t.ctx, lifetime())
		if f.tcp {
			f.stayTCP(ctx, q)
		} else {
			f.stayUDP(ctx, q)
		}
		cancel()
	}
}

func (f *flow) pause(d time.Duration) {
	select {
	case <-f.t.ctx.Done():
	case <-time.After(d):
	}
}

func (f *flow) note(q Question, open bool, a Answer, asked time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.question, f.open, f.answer, f.asked = q, open, a, asked
}

// stayUDP sends datagrams from one port. Where they go is judged each time.
func (f *flow) stayUDP(ctx context.Context, q Question) {
	d, err := openUDP(f.t.ctx, f.t.from(q, f.t.w.Pod("client").NS), f.t.freshSource(q), q.To)
	if err != nil {
		f.pause(betweenAsks) // the port may still be in use
		return
	}
	defer d.conn.Close()
	defer f.note(q, false, Answer{}, time.Time{})
	// The flow has not followed before it had its first answer.
	f.note(q, true, Answer{}, time.Time{})
	was, served := "", time.Now()
	// unanswered is when the first datagram since the last answer was sent. It may have made the
	// kernel's entry, which keeps its pod. So does an older entry while no table translates
	// addresses: the kernel then refuses even datagrams of open flows.
	var unanswered time.Time
	for n := 0; ctx.Err() == nil; n++ {
		a, sent, again, err := d.ask(shortest, 1, nil)
		if f.t.ctx.Err() != nil {
			return
		}
		if err != nil {
			f.t.fail("an open flow, %v: %v", q, err)
			return
		}
		now := time.Now()
		if now.Sub(served) > entryLife {
			f.t.w.count.add("open flows given up, for the machine was too slow")
			return
		}
		if unanswered.IsZero() {
			unanswered = sent
		}
		a.Open, a.Was = n > 0, was
		if a.Kind == Silent && f.t.w.book.Now(q).Fate == Served && now.Sub(served) < longest &&
			!f.t.silent(q, served, now) {
			// Late, or lost in the moment between two programs.
			f.t.w.count.add("datagrams of open flows sent again")
			continue
		}
		v := f.t.w.book.Judge(q, a, since(a, unanswered, served), now)
		f.t.w.count.message(a, v, again)
		if v.Wrong != "" {
			f.t.fail("an open flow went wrong: %s", v.Wrong)
			return
		}
		if v.Excuse == Orphaned {
			return // it may stay like this for ever
		}
		f.note(q, true, a, sent)
		served = now
		switch {
		case a.Kind == Answered:
			was, unanswered = a.Pod, time.Time{}
		case !v.Damaged:
			was, unanswered = "", time.Time{}
		}
		f.pause(betweenSteps)
	}
}

// since is when the question of an answer began: silence may have begun with the last
// answer. So may have the reason for which a flow left its pod.
func since(a Answer, sent, served time.Time) time.Time {
	if a.Kind == Silent || a.Was != "" && a.Was != a.Pod {
		return served
	}
	return sent
}

// stayTCP keeps a connection open. It may end only where the rules, or the lack of them,
// gave a reason.
func (f *flow) stayTCP(ctx context.Context, q Question) {
	conn, pod, ok := f.connect(q)
	if !ok {
		return
	}
	defer conn.Close()
	read := bufio.NewReader(conn)
	last := time.Now()
	for n := 0; ctx.Err() == nil; n++ {
		err := echo(conn, read, n)
		if f.t.ctx.Err() != nil {
			return
		}
		now := time.Now()
		if err == nil {
			f.t.w.count.add("messages on open TCP connections")
			last = now
			f.pause(betweenSteps)
			continue
		}
		excuse := f.t.w.book.Excuse(last, now)
		asked := f.t.w.book.MayCut(q, pod, last, now, f.t.w.choice.Get("clean-established") == "yes")
		switch {
		case asked:
			f.t.w.count.add("open TCP connections to removed endpoints reset, as the Service or " +
				"--nftproxy-conntrack-clean-established asks")
		case excuse != "":
			f.t.w.count.excused("open TCP connections broken", excuse)
		default:
			f.t.fail("an open TCP connection broke, %v with %s: %v", q, pod, err)
		}
		return
	}
}

// connect opens a connection and reads who the server is.
func (f *flow) connect(q Question) (net.Conn, string, bool) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(f.t.ctx, longest)
	defer cancel()
	conn, err := f.t.from(q, f.t.w.Pod("client").NS).Dial(ctx, "tcp", q.To.String())
	answer := Answer{Kind: Broken}
	if err == nil {
		answer, err = greeting(conn)
	}
	if f.t.ctx.Err() != nil {
		return nil, "", false
	}
	if err != nil {
		answer.Kind = kindOf(err)
	}
	v := f.t.w.book.Judge(q, answer, began, time.Now())
	f.t.w.count.question(q.Protocol, answer, v, 0)
	if v.Wrong != "" {
		f.t.fail("a connection that was to stay open went wrong: %s (error: %v)", v.Wrong, err)
	}
	if answer.Kind != Answered && conn != nil {
		conn.Close()
	}
	return conn, answer.Pod, answer.Kind == Answered
}
