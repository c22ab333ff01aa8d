package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/netfilter"
)

// subject is a running proxy that is measured.
type subject struct {
	*run
	backend
	node    *proxies.Node
	process *child.Process
	monitor *netfilter.Monitor
	meter   *meter
	*answers
}

// step answers one or more questions.
type step struct {
	name      string
	questions []string
	// slow says that only a whole run asks this of a slow proxy, and that no run asks it of a
	// proxy whose rules the kernel gives no notice of.
	slow bool
	do   func(context.Context) error
}

func (s *subject) steps() []step {
	return []step{
		{"first program", []string{result.FirstProgram, result.StartToProgram, result.FirstProgramCPU}, false,
			s.firstPrograms},
		{"one-endpoint changes", []string{result.ChangeSeen, result.ChangeInside, result.ChangeCPU, result.PeakMemory}, false,
			s.oneEndpoint},
		{"100 changes a second", []string{result.Churn100, result.Churn100CPU}, true, s.churn100},
		{"1,000 changes a second", []string{result.Churn1000, result.Churn1000CPU}, true, s.churn1000},
		{"restart", []string{result.Restart}, false, s.restart},
	}
}

// asked leaves out the steps that the proxy cannot answer, or that this run does not ask.
func (s *subject) asked() []step {
	steps := s.steps
	if s.Node {
		steps = s.nodeSteps
	}
	return slices.DeleteFunc(steps(), func(st step) bool { return st.slow && (s.Silent || s.churnTime(s.Ours) == 0) })
}

// proxyQuestions lists what a whole run asks of a proxy.
func (c Config) proxyQuestions(name string) []string {
	p := proxies.Proxy{Name: name, Ours: name == result.NFTProxy, Silent: proxies.Silent(name)}
	s := &subject{run: &run{Config: Config{Samples: Full(), Node: c.Node}}, backend: backend{Proxy: p}}
	var questions []string
	for _, st := range s.asked() {
		questions = append(questions, s.of(st)...)
	}
	return questions
}

// of lists the questions of a step that the proxy can answer.
func (s *subject) of(st step) []string {
	return slices.DeleteFunc(slices.Clone(st.questions), func(q string) bool {
		return !s.Ours && strings.HasSuffix(q, "inside the process")
	})
}

// backend measures one proxy. The cells report every error.
func (r *run) backend(ctx context.Context, b backend) {
	s := &subject{run: r, backend: b, answers: &answers{run: r, who: b.Name}}
	err := b.Missing
	if err == nil {
		r.doing(b.Name, "node")
		s.node, err = proxies.NewNode(ctx, r.world.plane)
	}
	if err != nil {
		s.fail(s.asked(), err)
		return
	}
	defer s.close()
	for i, st := range s.asked() {
		r.doing(b.Name, st.name)
		err := st.do(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.As(err, new(tooSlow)) {
			s.fail(s.asked(), err)
			return
		}
		s.fail([]step{st}, err)
		if err != nil {
			r.complain(s, st, err)
		}
		if s.process == nil || s.process.Ended() {
			if err == nil {
				err = child.ErrEnded
			}
			if i+1 < len(s.asked()) && st.name != "restart" {
				s.fail(s.asked()[i+1:], fmt.Errorf("%s: %w", st.name, err))
				return
			}
		}
	}
}

// fail says for each unanswered question of the steps why it has no answer.
func (s *subject) fail(steps []step, err error) {
	for _, st := range steps {
		s.missing(s.of(st), err)
	}
}

// complain logs a failure.
func (r *run) complain(s *subject, st step, err error) {
	fmt.Fprintf(r.Log, "%s, %s, %s: %v\n", r.size.Name, s.Name, st.name, err)
	if s.process != nil {
		fmt.Fprintf(r.Log, "%s\n", s.process.Tail(20))
	}
}

// start runs the proxy until its first program is in the kernel. After an error neither
// the proxy nor its children run.
func (s *subject) start(ctx context.Context) (proxies.First, error) {
	p, err := s.Start(s.node)
	if err != nil {
		return proxies.First{}, err
	}
	s.process, s.meter = p, newMeter(p.PID())
	first, err := s.First(ctx, p)
	if err != nil {
		s.meter.stopNow()
		return proxies.First{}, errors.Join(err, p.Kill())
	}
	return first, nil
}

// end stops the proxy; its rules stay.
func (s *subject) end(ctx context.Context) error {
	if s.meter != nil {
		s.meter.stopNow()
	}
	if s.process == nil {
		return nil
	}
	return s.Stop(ctx, s.process)
}

// close ends what runs and removes the node.
func (s *subject) close() {
	errs := []error{s.end(context.Background())}
	if s.monitor != nil {
		errs = append(errs, s.monitor.Close())
	}
	if err := errors.Join(append(errs, s.node.Close())...); err != nil {
		fmt.Fprintf(s.Log, "%s, %s: %v\n", s.size.Name, s.Name, err)
	}
}

// listen starts to listen to the node's nftables, if it has not started yet. During the
// load of a first program nothing listens, since that would slow the load down.
func (s *subject) listen() (err error) {
	if s.monitor == nil {
		s.monitor, err = netfilter.Listen(s.node.Node.Fd())
	}
	return err
}

// pause waits until the proxy is at rest.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
