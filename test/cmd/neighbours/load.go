package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"nftproxy/test/lib/testnet"
)

// tally counts the connections of a load that began after an event.
type tally struct{ Made, Lost int }

func (t tally) plus(o tally) tally { return tally{t.Made + o.Made, t.Lost + o.Lost} }

// load is a steady stream of new connections and datagrams, and of lines on connections that stay open.
type load struct {
	w       *world
	streams []stream
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu sync.Mutex
	moment
	// tallies has those of each event by the number of the stream.
	tallies map[string][]tally
	made    int // since the event
	// enough is closed once enough connections count for the event.
	enough chan struct{}
}

// moment says which events were before it: the last one, and the last one that ended open connections.
type moment struct{ event, cut string }

// brokenBy says for which event a connection counts that has broken by now. Last is the moment of its last line, with
// the cut that was before the last answer: a connection without an answer since a cut was open before that.
func (last moment) brokenBy(now moment) string {
	if now.cut != last.cut {
		return now.cut
	}
	return last.event
}

// stream is one kind of connection of the load.
type stream struct {
	// unused streams have no connections.
	unused         bool
	from, protocol string
	addr           netip.AddrPort
	// source is the address that questions come from; none if the kernel chooses it.
	source netip.Addr
	// like is the key of the direct flow on the same way.
	like string
	// strict streams may lose nothing: the neighbour alone has nothing to compare with.
	strict bool
	// again says that a connection is tried again if it breaks, as where the address of its Service moves.
	again bool
}

const (
	pace = 100 * time.Millisecond
	// perEvent is how many connections are made after an event at least.
	perEvent = 300
	// lineTime is the longest time that a line of an open connection may take, in terms of trialSetup.long.
	lineTime = 3
	// attempts is how often a connection is tried that breaks, where one that has begun may.
	attempts = 3
)

// streams are the same ways with nftproxy, by Services, and without it, directly.
func (w *world) streams(direct bool) []stream {
	var all []stream
	for family := range w.net.NodeAddrs {
		for _, proto := range []string{testnet.TCP, testnet.UDP} {
			for i, front := range frontends() {
				number := []int{serviceNear, serviceFar, serviceNear, serviceFar}[i]
				froms := []string{"outside", "pod"}
				if i == 0 {
					froms = []string{"node", "pod"}
				}
				for _, from := range froms {
					pod := map[int]string{serviceNear: "near", serviceFar: "far"}[number]
					addr := front.addr(w, family, number)
					if direct {
						addr = netip.AddrPortFrom(w.net.Pod(pod).Addrs[family], podPort)
					}
					like := flow{from: from, to: pod, protocol: proto, addr: addr}
					all = append(all, stream{from: from, protocol: proto, addr: addr, like: like.key()})
				}
			}
		}
	}
	return all
}

func (w *world) startLoad(ctx context.Context, streams []stream) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{w: w, streams: streams, cancel: cancel, tallies: map[string][]tally{}}
	l.after("the load began")
	for i, s := range streams {
		if s.unused || w.quiet {
			continue
		}
		l.running.Go(func() { l.ask(ctx, i) })
		if s.protocol == testnet.TCP && !s.strict {
			l.running.Go(func() { l.talk(ctx, i) })
		}
	}
	return l
}

// after has the connections from now on count for an event.
func (l *load) after(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.event, l.made = event, 0
	l.tallies[event] = make([]tally, len(l.streams))
	l.enough = make(chan struct{})
}

// settle has the connections from now on count for what follows an event that drops all packets.
func (l *load) settle(n neighbour, event string) {
	over := n.settled(event)
	if over == event {
		return
	}
	l.after(over)
	if n.cuts {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cut = event
	}
}

// await waits until enough connections were made since the event.
func (l *load) await(ctx context.Context) error {
	l.mu.Lock()
	enough := l.enough
	l.mu.Unlock()
	if l.w.quiet {
		return nil
	}
	select {
	case <-enough:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *load) now() moment {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moment
}

func (l *load) count(event string, stream int, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.tallies[event][stream]
	t.Made++
	if lost {
		t.Lost++
	}
	if event != l.event {
		return
	}
	l.made++
	if l.made == perEvent {
		close(l.enough)
	}
}

// ask makes new connections at a steady pace, each with a question, until the context ends. A question under way then
// ends by itself.
func (l *load) ask(ctx context.Context, i int) {
	s := l.streams[i]
	var asking sync.WaitGroup
	defer asking.Wait()
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		event := l.now().event
		asking.Go(func() {
			l.count(event, i, !l.w.answered(context.WithoutCancel(ctx), s))
		})
	}
}

// answered asks once on a stream.
func (w *world) answered(ctx context.Context, s stream) bool {
	if proto, is := strings.CutPrefix(s.protocol, dnsBy); is {
		return isOpen(lookUp(ctx, w.places[s.from], proto, s.source, s.addr, w.long))
	}
	for left := attempts; ; left-- {
		answer, err := w.places[s.from].Ask(ctx, s.protocol, s.addr, w.long)
		switch {
		case err == nil && answer.Outcome == testnet.Answered:
			return true
		case !s.again, s.protocol != testnet.TCP, left == 1, err == nil && answer.Outcome == testnet.TimedOut:
			return false
		}
	}
}

// talk sends lines on one connection, and begins another where one breaks.
func (l *load) talk(ctx context.Context, i int) {
	for ctx.Err() == nil {
		last := l.now()
		err := l.conversation(ctx, l.streams[i], &last)
		if err != nil {
			last.event = last.brokenBy(l.now())
		}
		l.count(last.event, i, err != nil)
		if err != nil { // at a steady pace, too
			select {
			case <-time.After(pace):
			case <-ctx.Done():
			}
		}
	}
}

// conversation ends with the context, and says after which event the line was that failed, and which cut was before the
// last one answered.
func (l *load) conversation(ctx context.Context, s stream, last *moment) error {
	dialing, cancel := context.WithTimeout(context.WithoutCancel(ctx), lineTime*l.w.long)
	defer cancel()
	conn, err := l.w.places[s.from].Dial(dialing, "tcp", s.addr.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	buf := make([]byte, 256)
	if err := conn.SetDeadline(time.Now().Add(lineTime * l.w.long)); err != nil {
		return err
	}
	if _, err := conn.Read(buf); err != nil { // the server's greeting
		return err
	}
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now := l.now()
		last.event = now.event
		if err := conn.SetDeadline(time.Now().Add(lineTime * l.w.long)); err != nil {
			return err
		}
		if _, err := conn.Write([]byte("line\n")); err != nil {
			return err
		}
		if _, err := conn.Read(buf); err != nil {
			return err
		}
		last.cut = now.cut
	}
}

// text names the stream.
func (s stream) text() string { return fmt.Sprintf("%s to %v, %s", s.from, s.addr, s.protocol) }

// stop ends the load and waits until each question has its outcome.
func (l *load) stop() {
	l.cancel()
	l.running.Wait()
}
