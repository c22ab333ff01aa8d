package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"nftproxy/bench/result"
	"nftproxy/nft"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// insideQuestions are the kinds of changes, by the names of their batches.
func insideQuestions() []string {
	return []string{result.ChangeInside, result.ScaleInside, result.AddInside, result.DeleteInside}
}

func nftQuestions() []string {
	return append([]string{result.FirstProgram, result.FirstProgramCPU, result.PeakMemory}, insideQuestions()...)
}

func bareQuestions() []string { return append([]string{result.FirstProgram}, insideQuestions()...) }

// limit is a measurement without a proxy.
type limit struct {
	name      string
	questions []string
	measure   func(context.Context, *programs, *answers) error
}

func (r *run) limitSteps() []limit {
	if r.Node {
		var changes []string
		for _, rate := range result.NodeRates() {
			changes = append(changes, result.NodeCPU(rate))
		}
		return []limit{{result.BareNetlink, []string{result.NodeFloor}, r.startFloor}, {result.ChangeFloor, changes, r.changeFloor}}
	}
	return []limit{{result.NFTCommand, nftQuestions(), r.nftCommand}, {result.BareNetlink, bareQuestions(), r.bare}}
}

// limits measures the nft command and the bare kernel, with nftproxy's own programs.
func (r *run) limits(ctx context.Context) error {
	r.doing("nft and bare netlink", "programs")
	p, err := r.world.programs(ctx)
	if err != nil {
		return err
	}
	for _, l := range r.limitSteps() {
		r.doing(l.name, "first program and changes")
		a := &answers{run: r, who: l.name}
		err := l.measure(ctx, p, a)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		a.missing(l.questions, err)
	}
	return nil
}

// bareStarts is how often the bare kernel loads the first program.
const bareStarts = 5

// bareNode is a network namespace with a socket for batches.
type bareNode struct {
	ns     *testnet.Namespace
	socket *bareSocket
}

// loadBare loads a whole program into a namespace of its own. took is the kernel's time.
func loadBare(whole encoded) (node bareNode, took time.Duration, err error) {
	if node.ns, err = testnet.New("bare"); err != nil {
		return node, 0, err
	}
	if node.socket, err = dialBare(node.ns.Fd(), len(whole[0])); err != nil {
		return node, 0, joinClose(err, node.ns.Close)
	}
	if took, err = node.socket.send(whole); err != nil {
		err = joinClose(err, node.close)
	}
	return node, took, err
}

func (n bareNode) close() error { return errors.Join(n.socket.close(), n.ns.Close()) }

// loadsBare loads a whole program several times. It returns the times in seconds, and the
// last node.
func loadsBare(whole encoded) (node bareNode, took []float64, err error) {
	for n := range bareStarts {
		if n > 0 {
			if err := node.close(); err != nil {
				return node, nil, err
			}
		}
		var d time.Duration
		if node, d, err = loadBare(whole); err != nil {
			return node, nil, err
		}
		took = append(took, d.Seconds())
	}
	return node, took, nil
}

func (r *run) bare(ctx context.Context, p *programs, a *answers) (err error) {
	whole, err := encode(load(p.whole))
	if err != nil {
		return err
	}
	node, took, err := loadsBare(whole)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, node.close) }()
	c := medianCell(r.cell(result.FirstProgram, result.BareNetlink, "s"), took, nil)
	c.Values["MB"] = float64(len(whole[0])) / 1e6
	a.answer(c)
	return a.swaps(ctx, p, node.ns, r.Samples.Others, func(b nft.Batch) (timed, error) {
		e, err := encode(b)
		return func() (time.Duration, error) { return node.socket.send(e) }, err
	})
}

// timed does prepared work, and returns how long it took.
type timed func() (time.Duration, error)

// swaps makes changes and their reverses in a network namespace. If a kind of change
// fails, its cells say why.
func (a *answers) swaps(ctx context.Context, p *programs, ns *testnet.Namespace, count int, prepare func(nft.Batch) (timed, error)) error {
	// As beside a proxy, a listener makes the kernel write notices.
	monitor, err := netfilter.Listen(ns.Fd())
	if err != nil {
		return err
	}
	defer monitor.Close()
	for _, q := range []struct {
		swap        swap
		there, back string // questions
	}{
		{p.one, result.ChangeInside, result.ChangeInside},
		{p.scale, result.ScaleInside, result.ScaleInside},
		{p.add, result.AddInside, result.DeleteInside},
	} {
		samples := map[string][]float64{q.there: nil, q.back: nil}
		err := a.swapping(ctx, q.swap, count, prepare, func(back bool, took time.Duration) {
			question := q.there
			if back {
				question = q.back
			}
			samples[question] = append(samples[question], ms(took))
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for question, list := range samples {
			c := a.cell(question, a.who, "ms")
			switch c.Values = result.Quantiles(list); {
			case errors.Is(err, context.DeadlineExceeded) && len(list) == 0:
				c = a.over(question, a.who, "ms")
			case errors.Is(err, context.DeadlineExceeded):
				c.Note = fmt.Sprintf("one more was given up after %v", a.Limit)
			case err != nil:
				c.Fail(err)
			}
			a.answer(c)
		}
	}
	return nil
}

// swapping makes a change and its reverse in turn until the budget is used up. It ends in
// the state in which it began.
func (r *run) swapping(ctx context.Context, s swap, count int, prepare func(nft.Batch) (timed, error), note func(back bool, took time.Duration)) error {
	var first, back, again timed
	for _, b := range []struct {
		batch nft.Batch
		to    *timed
	}{{s.first, &first}, {s.back, &back}, {s.again, &again}} {
		var err error
		if *b.to, err = prepare(b.batch); err != nil {
			return err
		}
	}
	if _, err := first(); err != nil {
		return err
	}
	began := time.Now()
	// As beside a proxy, the API server has just worked. With everything still in the
	// processor's caches, the kernel would be faster than a proxy ever finds it.
	writes := r.world.replacements(count)
	for k := range 2 * (count / 2) {
		if k > 0 && k%2 == 0 && time.Since(began) > r.Samples.Budget {
			break
		}
		// The pause of a proxy that is at rest when a change comes.
		if err := pause(ctx, ourRest); err != nil {
			return err
		}
		if err := writes.list[k].write(ctx); err != nil {
			return err
		}
		do := back
		if k%2 == 1 {
			do = again
		}
		took, err := do()
		if err != nil {
			return err
		}
		note(k%2 == 0, took)
	}
	_, err := back()
	return err
}

// nftChanges is how many changes of each kind the nft command makes.
const nftChanges = 10

func (r *run) nftCommand(ctx context.Context, p *programs, a *answers) error {
	command, version, err := findNFT(ctx)
	if err != nil {
		return err
	}
	r.Version("nft", version)
	ns, err := testnet.New("nft")
	if err != nil {
		return err
	}
	defer ns.Close()
	limited, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	text := load(p.whole).String()
	script := nftScript{command.Path(), ns}
	took, usage, err := script.run(limited, text)
	if errors.Is(limited.Err(), context.DeadlineExceeded) {
		a.answer(r.over(result.FirstProgram, result.NFTCommand, "s"))
		return tooSlow{limit: r.Limit}
	}
	if err != nil {
		return err
	}
	for _, v := range []struct {
		question, unit string
		value          float64
	}{
		{result.FirstProgram, "s", took.Seconds()},
		{result.FirstProgramCPU, "s", time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()},
		{result.PeakMemory, "MB", float64(usage.Maxrss<<10) / 1e6},
	} {
		c := r.cell(v.question, result.NFTCommand, v.unit)
		c.Values = map[string]float64{result.Value: v.value}
		a.answer(c)
	}
	return a.swaps(ctx, p, ns, nftChanges, func(b nft.Batch) (timed, error) {
		text := b.String()
		return func() (time.Duration, error) {
			limited, cancel := context.WithTimeout(ctx, r.Limit)
			defer cancel()
			d, _, err := script.run(limited, text)
			if limited.Err() != nil {
				err = limited.Err() // and not that it was killed
			}
			return d, err
		}, nil
	})
}

// nftScript runs scripts by the nft command.
type nftScript struct {
	path string
	ns   *testnet.Namespace
}

func (s nftScript) run(ctx context.Context, text string) (time.Duration, *syscall.Rusage, error) {
	var complaints bytes.Buffer
	cmd := exec.CommandContext(ctx, s.path, "-f", "-")
	cmd.Stdin, cmd.Stderr = strings.NewReader(text), &complaints
	start := time.Now()
	if err := s.ns.Run(cmd); err != nil {
		return 0, nil, fmt.Errorf("nft -f: %w: %s", err, strings.TrimSpace(complaints.String()))
	}
	took := time.Since(start)
	return took, cmd.ProcessState.SysUsage().(*syscall.Rusage), nil
}
