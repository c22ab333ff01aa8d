package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"nftproxy/test/cmd/realcluster/cluster"
)

// OutageOptions say what happens to the API server.
type OutageOptions struct {
	// Away is how long it is away. It takes some seconds more until it answers again.
	Away time.Duration
	// Cut says that it is cut off from the nodes, and runs on: the controllers go on using it. Otherwise it is killed.
	Cut bool
	// After is how long the traffic goes on when it is back.
	After time.Duration
}

// before is how long the traffic goes on before the API server goes away.
const before = 10 * time.Second

// outage is one outage.
type outage struct {
	*Web
	OutageOptions
	load   *Load
	record *record
	out    io.Writer
}

// TakeAPIServerAway takes the API server away, brings it back, and writes what happened. The error says that requests
// failed while the Service had endpoints, or while nothing was to be learned of its endpoints.
func TakeAPIServerAway(ctx context.Context, c *cluster.Cluster, o OutageOptions, out io.Writer) (err error) {
	web, err := Start(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, web.Remove()) }()
	t := &outage{Web: web, OutageOptions: o, record: newRecord(Namespace, "web"), out: out}
	stop, err := t.record.follow(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if t.load, err = web.AllLoad(ctx); err != nil {
		return err
	}
	phases, failed := t.run(ctx)
	seen, _ := t.load.End() // the account has the requests that failed
	if failed != nil {
		return failed
	}
	fmt.Fprintf(out, "under load: %s\n", seen)
	account := account{phases: phases, notes: t.record.taken(), failures: t.load.Failures()}
	account.write(out)
	return account.verdict()
}

// run makes the outage, and returns its phases.
func (t *outage) run(ctx context.Context) ([]phase, error) {
	p := phases{load: t.load}
	p.begin("before")
	if err := pause(ctx, before); err != nil {
		return nil, err
	}
	p.begin("away")
	bringBack, err := t.takeAway()
	if err != nil {
		return nil, err
	}
	away := pause(ctx, t.Away)
	p.begin("starting")
	// Also after an interruption: the cluster goes on.
	if err := errors.Join(away, bringBack(context.WithoutCancel(ctx))); err != nil {
		return nil, err
	}
	p.begin("back")
	if err := pause(ctx, t.After); err != nil {
		return nil, err
	}
	p.begin("") // the end
	return p.all, nil
}

// takeAway takes the API server away from the nodes, and returns what brings it back.
func (t *outage) takeAway() (bringBack func(context.Context) error, err error) {
	if !t.Cut {
		t.Plane.KillAPIServer()
		return t.Plane.StartAPIServer, nil
	}
	api, err := t.API()
	if err != nil {
		return nil, err
	}
	repair, err := t.Outside.Cut(api)
	return func(context.Context) error { return repair() }, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// phases follow one another without a gap.
type phases struct {
	load *Load
	all  []phase
}

// phase is a part of the outage, with the requests that ended in it.
type phase struct {
	name             string
	from, to         time.Time
	requests, failed int
}

// begin ends the phase before, and begins one unless it has no name.
func (p *phases) begin(name string) {
	now := time.Now()
	requests, failed := p.load.Seen()
	if n := len(p.all); n > 0 {
		last := &p.all[n-1]
		last.to, last.requests, last.failed = now, requests-last.requests, failed-last.failed
	}
	if name != "" {
		p.all = append(p.all, phase{name: name, from: now, requests: requests, failed: failed})
	}
}
