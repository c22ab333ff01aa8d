package e2e

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// answerTime is how long an answer may take: longer than the first
// retransmission of a SYN, which is none of a proxy's business.
const answerTime = 10 * time.Second

// soon is for events without a log line: it checks again and again. Each check is a
// question to a server that answers, which limits the rate.
func (n *node) soon(what string, check func() error) {
	n.t.Helper()
	n.within(patience, what, check)
}

// within waits that long for a check to succeed.
func (n *node) within(patience time.Duration, what string, check func() error) {
	n.t.Helper()
	for end := time.Now().Add(patience); ; {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("%s: still %v after %v", what, err, patience)
		}
	}
}

// ask asks one question.
func (n *node) ask(from *testnet.Namespace, protocol string, to netip.AddrPort) (testnet.Answer, error) {
	answer, err := from.Ask(n.ctx, protocol, to, answerTime)
	if err != nil {
		return answer, fmt.Errorf("%s to %v from %v: %w", protocol, to, from, err)
	}
	return answer, nil
}

// reaches returns an error unless exactly the wanted servers answer. It asks so often that
// it misses no server that gets connections.
func (n *node) reaches(from *testnet.Namespace, protocol string, to netip.AddrPort, want ...string) error {
	// One of k servers is missed with probability (1-1/k)^n: below 1e-9 here.
	rounds := 1
	if len(want) > 1 {
		rounds = 20 * (len(want) + 1)
	}
	seen := map[string]int{}
	for range rounds {
		answer, err := n.ask(from, protocol, to)
		if err != nil {
			return err
		}
		if answer.Outcome != testnet.Answered {
			return fmt.Errorf("%s to %v from %v: %s", protocol, to, from, answer.Outcome)
		}
		seen[answer.ID]++
	}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		return fmt.Errorf("%s to %v from %v: answered by %v, want %v", protocol, to, from, seen, want)
	}
	return nil
}

// refused returns an error unless a connection is refused, and how long that took.
func (n *node) refused(from *testnet.Namespace, protocol string, to netip.AddrPort) (time.Duration, error) {
	answer, err := n.ask(from, protocol, to)
	if err != nil {
		return 0, err
	}
	// For SCTP the answer to an unreachable port is ICMP port unreachable too.
	if answer.Outcome != testnet.Refused {
		return 0, fmt.Errorf("%s to %v from %v: %s by %q, want refused", protocol, to, from, answer.Outcome, answer.ID)
	}
	return answer.Took, nil
}

// everywhere calls check with each protocol and family.
func everywhere(check func(protocol string, family ip.Family) error) error {
	for _, protocol := range []string{testnet.TCP, testnet.UDP, testnet.SCTP} {
		for _, family := range ip.Families() {
			if err := check(protocol, family); err != nil {
				return err
			}
		}
	}
	return nil
}

// peer returns the client's address as the server saw it.
func (n *node) peer(from *testnet.Namespace, protocol string, to netip.AddrPort) (netip.Addr, error) {
	answer, err := n.ask(from, protocol, to)
	if err != nil {
		return netip.Addr{}, err
	}
	if answer.Outcome != testnet.Answered {
		return netip.Addr{}, fmt.Errorf("%s to %v from %v: %s", protocol, to, from, answer.Outcome)
	}
	return answer.Peer.Addr(), nil
}

func of(addrs testnet.Addrs, family ip.Family) netip.Addr {
	if family == ip.V6 {
		return addrs.V6()
	}
	return addrs.V4()
}
