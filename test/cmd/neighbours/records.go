package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"nftproxy/daemon/flows"
	modelflows "nftproxy/model/flows"
	"nftproxy/model/service"
	"nftproxy/test/lib/testnet"
)

// record is what a program has seen of the same traffic beside nftproxy that follows no connections, and that follows
// all.
type record struct {
	// Connections is how many connections the clients made each time.
	Connections int
	// Lines are the program's own record with nftproxy that follows none, each with how often it is there.
	Lines []string
	// Faults are the lines that differ with nftproxy that follows all, and the connections of which it has not one flow.
	Faults []string `json:",omitempty"`
}

// followAll is the share of connections that nftproxy follows beside a program that has a record.
const followAll service.Flows = 1

// closedPort is the port of the Services near and far that leads to a port of pods that policies close.
const closedPort = 90

// closedTime is how long a connection there may take: a SYN is repeated after each full second.
const closedTime = 2500 * time.Millisecond

// traffic are the connections that a record is about: all ways to Services, and some to a port that policies close.
func (w *world) traffic() []flow {
	all := slices.DeleteFunc(w.services(), func(f flow) bool { return f.protocol == "http" })
	for family := range w.net.NodeAddrs {
		for _, proto := range []string{testnet.TCP, testnet.UDP} {
			for _, from := range []string{"pod", "outside"} {
				at := frontends()[0].addr(w, family, serviceNear)
				if from == "outside" {
					at = frontends()[2].addr(w, family, serviceNear)
				}
				all = append(all, flow{from: from, to: "a port that policies close", protocol: proto,
					addr: netip.AddrPortFrom(at.Addr(), closedPort)})
			}
		}
	}
	return all
}

// recordOf has the program run beside nftproxy, which follows a share of the connections, and returns what both have
// seen of the traffic.
func recordOf(ctx context.Context, n neighbour, s trialSetup, share service.Flows) (r record, err error) {
	w, err := newWorld(ctx, s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	w.share = share
	if err := errors.Join(w.startProxy(ctx), w.prepare(ctx, n), w.net.Node.FlushConntrack()); err != nil {
		return r, err
	}
	if err := w.event(ctx, n, n.events[0]); err != nil {
		return r, err
	}
	asked := map[connection]int{}
	for _, f := range w.traffic() {
		patience := w.long
		if f.addr.Port() == closedPort {
			patience = closedTime
		}
		began := time.Now()
		outcome, err := w.askOne(ctx, f, patience)
		if err != nil {
			return r, err
		}
		if took := time.Since(began); outcome != string(testnet.TimedOut) && took >= short {
			return r, fmt.Errorf("%s took %v, so that packets were repeated: the machine is too busy", f.key(), took)
		}
		asked[connection{strings.ToUpper(f.protocol), f.addr, resultOf(outcome)}]++
		r.Connections++
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	if share == followAll { // first, since a record may end all connections
		if r.Faults, err = w.missed(ctx, asked); err != nil {
			return r, err
		}
	}
	text, err := n.record(ctx, w)
	r.Lines = counted(strings.Split(strings.TrimRight(text, "\n"), "\n"))
	return r, err
}

// counted sorts lines, and puts before each how often it is there.
func counted(lines []string) []string {
	times := map[string]int{}
	for _, l := range lines {
		times[l]++
	}
	var all []string
	for _, l := range slices.Sorted(maps.Keys(times)) {
		all = append(all, fmt.Sprintf("%d: %s", times[l], l))
	}
	return all
}

// tryRecorded compares what the program sees beside nftproxy that follows no connections and all.
func tryRecorded(ctx context.Context, n neighbour, s trialSetup) (r record, err error) {
	if r, err = recordOf(ctx, n, s, service.FlowsOff); err != nil {
		return r, err
	}
	all, err := recordOf(ctx, n, s, followAll)
	if err != nil {
		return r, err
	}
	r.Faults = append(unlike(r.Lines, all.Lines), all.Faults...)
	return r, nil
}

// unlike says which lines only one of two records has.
func unlike(off, all []string) (faults []string) {
	for _, l := range off {
		if !slices.Contains(all, l) {
			faults = append(faults, "only with off: "+l)
		}
	}
	for _, l := range all {
		if !slices.Contains(off, l) {
			faults = append(faults, "only with 1/1: "+l)
		}
	}
	return faults
}

// connection is what clients and nftproxy know of one alike.
type connection struct {
	protocol string // as in flows
	to       netip.AddrPort
	result   modelflows.Result
}

// resultOf is the result that a flow has for a client's outcome: where there was no answer, clients do not know why.
func resultOf(outcome string) modelflows.Result {
	switch {
	case isOpen(outcome):
		return modelflows.Answered
	case outcome == refused:
		return modelflows.Refused
	}
	return modelflows.Unanswered
}

// missed waits until nftproxy has one flow of each connection, and says of which it has none, several, or another
// result if that does not come.
func (w *world) missed(ctx context.Context, asked map[connection]int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		text, err := w.command(context.WithoutCancel(ctx), "flows", "--last=0", "-o", "json")
		if err != nil {
			return nil, err
		}
		var answer flows.Answer
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			return nil, fmt.Errorf("nftproxy flows: %w: %s", err, text)
		}
		seen := map[connection]int{}
		for i := range answer.Flows {
			f := &answer.Flows[i]
			c := connection{strings.ToUpper(f.Protocol), f.Address, f.Result}
			if c.result == modelflows.Dropped {
				c.result = modelflows.Unanswered
			}
			seen[c]++
		}
		if maps.Equal(seen, asked) {
			return nil, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return differences(asked, seen), nil
		}
	}
}

// differences says of which connections there are not as many flows.
func differences(asked, seen map[connection]int) []string {
	var all []string
	both := maps.Clone(asked)
	maps.Copy(both, seen)
	for _, c := range slices.SortedFunc(maps.Keys(both), func(a, b connection) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), a.to.Compare(b.to), cmp.Compare(a.result, b.result))
	}) {
		if asked[c] != seen[c] {
			all = append(all, fmt.Sprintf("%s to %v, %s: %d connections, %d flows", c.protocol, c.to, c.result, asked[c],
				seen[c]))
		}
	}
	return all
}
