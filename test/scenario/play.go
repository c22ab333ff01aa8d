package scenario

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"nftproxy/test/lib/testnet"
)

// Observed is what became of a flow, by what servers and client saw.
type Observed struct {
	Outcome
	// Reset is whether a refusal was a TCP reset.
	Reset bool
	// Attempts is the most SYNs that it took; 0 for other protocols.
	Attempts int
}

// Effort bounds how a flow is observed.
type Effort struct {
	// Tries is how often a client connects.
	Tries int
	// Timeout is how long it waits for each answer.
	Timeout time.Duration
}

// patience is how long a flow that is not to be dropped may take.
const patience = 10 * time.Second

// Check sends the flows of a step and compares what becomes of them with what
// they want. A translated flow is sent until each of its targets was seen, the
// chance to miss one by bad luck being below 1e-9, and at least so often that
// one target too many would most likely show. Each problem is an error of its
// own, beginning with the flow's path.
//
// Flows that are to be dropped wait in parallel; the others go one after the
// other, in their order.
func (s *Stage) Check(ctx context.Context, flows []Flow) []error {
	errs := make([]error, len(flows))
	sent := make([]netip.AddrPort, len(flows))
	var waiting sync.WaitGroup
	for i, f := range flows {
		if f.Want.Fate == Dropped {
			waiting.Go(func() { sent[i], errs[i] = s.checkDropped(ctx, f) })
		}
	}
	for i, f := range flows {
		if f.Want.Fate != Dropped {
			sent[i], errs[i] = s.check(ctx, f)
		}
	}
	waiting.Wait()
	leaked, err := s.leaked(flows, sent)
	if err != nil {
		return []error{err}
	}
	var found []error
	for i, f := range flows {
		if err := errors.Join(errs[i], leaked[i]); err != nil {
			found = append(found, fmt.Errorf("%s: %w", f.Path(), err))
		}
	}
	return found
}

// check returns the client of the last question, too.
func (s *Stage) check(ctx context.Context, f Flow) (client netip.AddrPort, err error) {
	if f.Protocol == HTTP {
		return s.checkAnswer(ctx, f)
	}
	seen := map[Target]bool{}
	least, most := s.tries(f)
	for n := 1; ; n++ {
		var got Observed
		if got, client, err = s.ask(ctx, f, patience); err != nil {
			return client, err
		}
		if err := s.wanted(f, got); err != nil {
			return client, err
		}
		for _, t := range got.Targets {
			seen[t] = true
		}
		switch {
		case n >= least && (f.Want.Sticky || len(seen) == len(f.Want.Targets)), f.Source.Port() != 0:
			return client, nil
		case n >= most:
			return client, fmt.Errorf("want %s, but in %d connections only %v were seen", f.Want, n, seen)
		}
	}
}

// tries are how often a flow is sent at least and at most. The chance that one
// of n targets has not been seen after t connections is below n(1-1/n)^t.
func (s *Stage) tries(f Flow) (least, most int) {
	n := float64(len(f.Want.Targets))
	switch {
	case f.Want.Fate != Translated:
		return 2, 2
	case f.Want.Sticky:
		return int(3 * n), int(3 * n)
	case n == 1:
		return 6, 6
	}
	least = int(4 * (n + 1))
	return least, least + int(math.Ceil(math.Log(n*1e9)/-math.Log1p(-1/n)))
}

// wanted says what is wrong with one observation.
func (s *Stage) wanted(f Flow, got Observed) error {
	switch {
	case got.Fate != f.Want.Fate, got.Answer != f.Want.Answer:
		return fmt.Errorf("want %s, got %s", f.Want, got)
	case got.Fate == Refused && f.Protocol == testnet.TCP && (!got.Reset || got.Attempts != 1):
		return fmt.Errorf("want a reset at once, got %s", got)
	case got.Fate != Translated:
		return nil
	case !slices.Contains(f.Want.Targets, got.Targets[0]):
		return fmt.Errorf("want %s, got %s", f.Want, got)
	case f.Want.Sticky:
		return s.stuck(f, got.Targets[0].Endpoint)
	}
	return nil
}

// stuck says whether a client has moved although it could have stayed.
func (s *Stage) stuck(f Flow, to netip.AddrPort) error {
	last, known := s.last[f.Client()]
	s.last[f.Client()] = to
	stays := slices.ContainsFunc(f.Want.Targets, func(t Target) bool { return t.Endpoint == last })
	if known && stays && to != last {
		return fmt.Errorf("the client moved from %s to %s", last, to)
	}
	return nil
}

// Last is the endpoint that the client of a sticky flow got when Check sent it
// last, if it got any.
func (s *Stage) Last(f Flow) (endpoint netip.AddrPort, known bool) {
	endpoint, known = s.last[f.Client()]
	return endpoint, known
}

func (s *Stage) checkDropped(ctx context.Context, f Flow) (netip.AddrPort, error) {
	got, client, err := s.ask(ctx, f, s.config.Silence)
	if err == nil && got.Fate != Dropped {
		err = fmt.Errorf("want %s, got %s", f.Want, got)
	}
	return client, err
}

// leaked finds what left the node for beyond and was not to.
func (s *Stage) leaked(flows []Flow, sent []netip.AddrPort) ([]error, error) {
	packets, err := s.sniffer.Packets()
	if err != nil {
		return nil, err
	}
	packets, s.sniffed = packets[s.sniffed:], len(packets)
	found := make([]error, len(flows))
	for i, f := range flows {
		if f.Want.Fate == Untouched {
			continue
		}
		for _, p := range packets {
			if p.Dst == f.Destination && (p.Src == sent[i] || slices.Contains(gateways(), p.Src.Addr())) {
				found[i] = fmt.Errorf("want %s, but %s left the node", f.Want, p)
			}
		}
	}
	return found, nil
}

// Observe sends a flow and says what becomes of it, whatever it wants: all
// targets that were seen. Different fates at different tries are an error.
func (s *Stage) Observe(ctx context.Context, f Flow, effort Effort) (Observed, error) {
	var all Observed
	for n := range effort.Tries {
		got, _, err := s.ask(ctx, f, effort.Timeout)
		if err != nil {
			return all, err
		}
		if n > 0 && got.Fate != all.Fate {
			return all, fmt.Errorf("%s, then %s", all, got)
		}
		for _, t := range got.Targets {
			if !slices.Contains(all.Targets, t) {
				all.Targets = append(all.Targets, t)
			}
		}
		all.Fate, all.Answer = got.Fate, got.Answer
		all.Reset, all.Attempts = got.Reset, max(all.Attempts, got.Attempts)
	}
	slices.SortFunc(all.Targets, func(a, b Target) int { return a.Endpoint.Compare(b.Endpoint) })
	return all, nil
}

func (o Observed) String() string {
	text := o.Outcome.String()
	if o.Fate == Refused && o.Attempts > 0 {
		by := "ICMP"
		if o.Reset {
			by = "a reset"
		}
		text += fmt.Sprintf(" by %s after %d SYNs", by, o.Attempts)
	}
	return text
}

// ask sends the flow once. It returns the client's address, too.
func (s *Stage) ask(ctx context.Context, f Flow, timeout time.Duration) (Observed, netip.AddrPort, error) {
	where := onNode
	if f.Origin != Node {
		where = s.now.home(f.Source.Addr())
	}
	ns := s.spaces[where]
	if ns == nil {
		return Observed{}, f.Source, errors.New("nobody has the source address: the stage is set for another step")
	}
	from := f.Source
	if from.Port() == 0 && f.Protocol != ICMP {
		from = netip.AddrPortFrom(from.Addr(), s.port())
	}
	if f.Protocol == HTTP {
		got, err := get(ctx, ns, from, f.Destination, timeout)
		return got, from, err
	}
	answer, err := ns.AskFrom(ctx, f.Protocol, from, f.Destination, timeout)
	if err != nil {
		return Observed{}, from, err
	}
	got, err := understand(f, answer)
	return got, from, err
}

const (
	firstPort = 33000 // above node ports: nobody listens there
	lastPort  = 65000
)

// port is a source port that no question has had. Scenarios ask some hundred
// times.
func (s *Stage) port() uint16 {
	return uint16(firstPort + s.ports.Add(1)%(lastPort-firstPort))
}

// understand says what an answer means for the flow.
func understand(f Flow, answer testnet.Answer) (Observed, error) {
	got := Observed{Reset: answer.Reset, Attempts: answer.Attempts}
	switch answer.Outcome {
	case testnet.TimedOut:
		got.Fate = Dropped
	case testnet.Refused:
		got.Fate = Refused
	case testnet.Answered:
		err := got.reached(f, answer)
		return got, err
	default:
		return got, fmt.Errorf("%s", answer.Outcome)
	}
	return got, nil
}

func (o *Observed) reached(f Flow, answer testnet.Answer) error {
	o.Fate = Untouched
	if f.Protocol == ICMP {
		if f.Want.Fate == Echoed { // leaked finds packets that another host could have answered
			o.Fate = Echoed
		}
		return nil
	}
	at, err := netip.ParseAddrPort(answer.ID)
	if err != nil {
		return fmt.Errorf("server %q: %w", answer.ID, err)
	}
	t := Target{Endpoint: at, Masqueraded: answer.Peer != answer.Local}
	asItself := func(w Target) bool { return w.Endpoint == at && w.As == answer.Local.Addr() }
	switch {
	case slices.ContainsFunc(f.Want.Targets, asItself) && answer.Peer == answer.Local:
		// Masqueraded as the client itself only the port is another one, and one of random ports is the client's.
		t.Masqueraded, t.As = true, answer.Peer.Addr()
	case slices.ContainsFunc(f.Want.Targets, func(w Target) bool { return w.As.IsValid() }) && t.Masqueraded:
		t.As = answer.Peer.Addr()
	}
	if at != f.Destination || slices.Contains(f.Want.Targets, t) {
		o.Fate, o.Targets = Translated, []Target{t}
		return nil
	}
	if t.Masqueraded {
		return fmt.Errorf("untouched, but the server saw %v instead of %v", answer.Peer, answer.Local)
	}
	return nil
}
