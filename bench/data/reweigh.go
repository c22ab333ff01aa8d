package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"nftproxy/bench/result"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/testnet"
)

// reweigh measures the commit of a changed weight, there and back, beside the first load of everything.
func (c Choices) reweigh(ctx context.Context) ([]Figure, error) {
	var figures []Figure
	for _, services := range c.Services {
		for _, balance := range []string{"random", "client"} {
			name := balance + ", weights 90 and 10, then 80 and 20"
			fmt.Fprintf(c.Log, "commits, %s Services, %s\n", result.Count(services), name)
			list, err := c.reweighed(ctx, services, balance, name)
			if err != nil {
				return nil, fmt.Errorf("commits with %d Services, %s: %w", services, name, err)
			}
			figures = append(figures, list...)
		}
	}
	return figures, nil
}

func (c Choices) reweighed(ctx context.Context, services int, balance, name string) (figures []Figure, err error) {
	endpoints := endpointIPs()[:2]
	before, err := drawn(services-1, drawing{balance: balance, weights: []uint16{90, 10}}, endpoints)
	if err != nil {
		return nil, err
	}
	after, err := drawn(services-1, drawing{balance: balance, weights: []uint16{80, 20}}, endpoints)
	if err != nil {
		return nil, err
	}
	programs := drawnPrograms(services, before, after)
	var loads, commits []float64
	var sizes [2]int
	for range c.Loads {
		load, commit, err := c.loadAndReweigh(ctx, programs, &sizes)
		if err != nil {
			return nil, err
		}
		loads, commits = append(loads, load), append(commits, commit)
	}
	const against = "first load"
	ratio, _ := pairedRatio(commits, loads)
	return []Figure{
		{Question: "first load, objects", Case: name, Services: services, Value: float64(sizes[0])},
		{Question: "first load, commit", Case: name, Services: services, Value: result.Median(loads), Unit: "ms"},
		{Question: "changed weight, objects", Case: name, Services: services, Value: float64(sizes[1]), Ratio: float64(sizes[1]) / float64(sizes[0]), Against: against},
		{Question: "changed weight, commit", Case: name, Services: services, Value: result.Median(commits), Unit: "ms", Ratio: ratio, Against: against},
	}, nil
}

// loadAndReweigh loads the first program into a kernel without tables, and goes to the second and back. It returns the
// time of the load and the median of those of the changes, and sets how many objects both write.
func (c Choices) loadAndReweigh(ctx context.Context, programs []*nft.Program, sizes *[2]int) (loading, changing float64, err error) {
	ns, err := testnet.New("reweigh")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	conn, err := kernel.Open(kernel.Config{NetNS: ns.Fd()})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	load, state := nft.State{}.Plan(programs[0], time.Time{})
	if loading, err = timed(conn, load); err != nil {
		return 0, 0, err
	}
	sizes[0] = load.Size()
	var took []float64
	for i := range 2 * c.Commits {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		batch, next := state.Plan(programs[(i+1)%2], time.Time{})
		t, err := timed(conn, batch)
		if err != nil {
			return 0, 0, err
		}
		if i > 0 { // The first one may make a chain, which then stays.
			took, sizes[1] = append(took, t), batch.Size()
		}
		state = next
	}
	return loading, result.Median(took), nil
}

// timed carries out a batch and returns how long that took, in milliseconds.
func timed(c *kernel.Conn, batch nft.Batch) (float64, error) {
	start := time.Now()
	err := apply(c, batch)
	return milliseconds(time.Since(start)), err
}

// Rolling is an update that replaces all endpoints of a Service, one after the other.
type Rolling struct {
	Endpoints int
	Steps     []RollingStep
}

// RollingStep is the replacement of one endpoint. Shares are of all clients, from 0 to 1.
type RollingStep struct {
	// Objects were written by hash, and RandomObjects where endpoints are drawn at random; Commit took so many milliseconds.
	Objects, RandomObjects int
	Commit                 float64
	// Moved have another endpoint than before the step, and EverMoved than before some step.
	Moved, EverMoved float64
}

// Roll measures the update of a Service with balance client: what is written, and which clients get another endpoint.
// A client's slot is the hash of its address, which the update does not change, so a share of slots is one of clients.
func (c Choices) Roll(ctx context.Context, endpoints int) (r Rolling, err error) {
	fmt.Fprintf(c.Log, "a rolling update of %d endpoints\n", endpoints)
	r.Endpoints = endpoints
	ns, err := testnet.New("rolling")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	conn, err := kernel.Open(kernel.Config{NetNS: ns.Fd()})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	hash, err := rollingPrograms("client", endpoints)
	if err != nil {
		return r, err
	}
	random, err := rollingPrograms("random", endpoints)
	if err != nil {
		return r, err
	}
	batch, state := nft.State{}.Plan(hash[0], time.Time{})
	if err := apply(conn, batch); err != nil {
		return r, err
	}
	_, drawnState := nft.State{}.Plan(random[0], time.Time{})
	row := rowOf(hash[0])
	ever := make([]bool, len(row))
	for i := 1; i <= endpoints && ctx.Err() == nil; i++ {
		var step RollingStep
		batch, state = state.Plan(hash[i], time.Time{})
		if step.Commit, err = timed(conn, batch); err != nil {
			return r, err
		}
		step.Objects = batch.Size()
		batch, drawnState = drawnState.Plan(random[i], time.Time{})
		step.RandomObjects = batch.Size()
		next := rowOf(hash[i])
		moved, once := 0, 0
		for slot := range row {
			if row[slot] != next[slot] {
				moved++
				ever[slot] = true
			}
			if ever[slot] {
				once++
			}
		}
		step.Moved, step.EverMoved = float64(moved)/float64(len(row)), float64(once)/float64(len(row))
		r.Steps, row = append(r.Steps, step), next
	}
	return r, ctx.Err()
}

// rollingPrograms returns the programs before and after each step: the i-th step replaces the i-th endpoint.
func rollingPrograms(balance string, endpoints int) ([]*nft.Program, error) {
	var list []netip.Addr
	for i := range endpoints {
		list = append(list, controlplane.Address("10.244.0.1", i))
	}
	var programs []*nft.Program
	for i := range endpoints + 1 {
		if i > 0 {
			list[i-1] = controlplane.Address("10.244.1.1", i-1)
		}
		s, err := drawn(0, drawing{balance: balance}, list)
		if err != nil {
			return nil, err
		}
		programs = append(programs, drawnPrograms(1, s)...)
	}
	return programs, nil
}

// Figures sums up the update.
func (r Rolling) Figures() []Figure {
	var moved, commits, hashed, random []float64
	all, objects := 0.0, 0
	for _, s := range r.Steps {
		moved, commits = append(moved, s.Moved), append(commits, s.Commit)
		hashed, random = append(hashed, float64(s.Objects)), append(random, float64(s.RandomObjects))
		all, objects = all+s.Moved, objects+s.Objects
	}
	least := 1 / float64(r.Endpoints)
	question := fmt.Sprintf("rolling update of %d endpoints, ", r.Endpoints)
	return []Figure{
		{Question: question + "clients that move by a step", Case: "client", Services: 1, Value: 100 * result.Median(moved), Unit: "%", Ratio: result.Median(moved) / least, Against: "1/N"},
		{Question: question + "moves of a client in all", Case: "client", Services: 1, Value: all, Ratio: all, Against: "the least, 1"},
		{Question: question + "objects of a step", Case: "client", Services: 1, Value: result.Median(hashed), Ratio: result.Median(hashed) / result.Median(random), Against: "random"},
		{Question: question + "objects of a step", Case: "random", Services: 1, Value: result.Median(random)},
		{Question: question + "objects in all", Case: "client", Services: 1, Value: float64(objects)},
		{Question: question + "commit of a step", Case: "client", Services: 1, Value: result.Median(commits), Unit: "ms"},
	}
}

// Write writes the steps as CSV.
func (r Rolling) Write(w io.Writer) error {
	if _, err := fmt.Fprintln(w, "replaced,objects,objects of random,commit ms,moved by the step,moved so far"); err != nil {
		return err
	}
	for i, s := range r.Steps {
		if _, err := fmt.Fprintf(w, "%d,%d,%d,%.3f,%.4f,%.4f\n", i+1, s.Objects, s.RandomObjects, s.Commit, s.Moved, s.EverMoved); err != nil {
			return err
		}
	}
	return nil
}
