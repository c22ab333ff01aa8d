// Package servicetest tries the Services of a cluster as their users do. It makes servers and clients on some nodes,
// opens connections by every way into a Service, and says which of them did not go as the fields of the Service
// promise.
//
// The package knows no service proxy and reads no rules. Why a connection failed is asked of somebody else.
package servicetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// Options say what to try and with what.
type Options struct {
	// Client has the rights of the role nftproxy-test (deploy/plugin).
	Client kubernetes.Interface
	// Run runs a command in a container and returns what it prints. An exit status other than 0 may be an error.
	Run func(ctx context.Context, pod *corev1.Pod, container string, command ...string) ([]byte, error)
	// Image has agnhost at /agnhost, a shell and curl.
	Image string
	// Nodes have the servers and clients: at least one, each once.
	Nodes []corev1.Node
	// LoadBalancer says whether to make a Service of type LoadBalancer, which may cost money.
	LoadBalancer bool
	// Inside says why this process does not count as a client outside of the cluster; empty if it does.
	Inside string
	// Settle is how long a service proxy may take to follow a change: a check that fails is tried again until then.
	Settle time.Duration
	// Light leaves out endpoints that come and go.
	Light bool
	// Explain says why a connection fails; nil if nobody knows.
	Explain func(context.Context, Connection) []string
	// Progress is a terminal for a bar, and Notes are lines for people. Both may be nil.
	Progress, Notes io.Writer
}

// Connection is what a client tried.
type Connection struct {
	// Pod is the client. nil is this process, and a pod on the host's network stands for a process of the node.
	Pod *corev1.Pod
	// Address is HOST:PORT, where HOST may be a name, and Protocol tcp, udp or sctp.
	Address, Protocol string
}

// The states of a result.
const (
	Passed   = "pass"
	Failed   = "FAIL"
	NotTried = "not tried"
)

// Result is what came of one check.
type Result struct {
	// Test is the name of the kind of check.
	Test string `json:"test"`
	// From is the client and To what it connected to, with the Service's name and the way into it.
	From string `json:"from"`
	To   string `json:"to"`
	// State is Passed, Failed or NotTried.
	State string `json:"state"`
	// Detail is what was seen, or why it was not tried.
	Detail string `json:"detail,omitempty"`
	// Explanation is why it failed, in lines.
	Explanation []string `json:"explanation,omitempty"`

	connection *Connection
}

// The bounds of a test: how long pods may take to start and to end, how long one check may take, how many checks go on
// at a time, how long a check that failed waits, and how long what the test made may stay if nobody removes it.
const (
	startPatience   = 5 * time.Minute
	checkPatience   = 90 * time.Second
	atOnce          = 16
	pauseAfterFail  = 500 * time.Millisecond
	longestLife     = time.Hour
	balancerLatency = 3 * time.Minute
	// Many failures have the same cause.
	mostExplained       = 12
	mostExplainedClient = 3
)

// Try makes the objects, tries everything, removes them and returns a result for each check. The error says why the
// test could not be carried out to its end; what was tried before is there all the same. The objects are removed at
// the end of ctx, too.
func Try(ctx context.Context, o Options) (results []Result, err error) {
	namespace, err := makeNamespace(ctx, o.Client)
	if err != nil {
		return nil, err
	}
	defer func() {
		o.note("removing namespace %s", namespace)
		err = errors.Join(err, removeNamespace(context.WithoutCancel(ctx), o.Client, namespace))
	}()
	o.note("starting servers and clients in namespace %s", namespace)
	s, err := makeStage(ctx, &o, namespace)
	if err != nil {
		return nil, err
	}
	t := &trial{Options: &o, stage: s}
	results, err = t.everything(ctx)
	t.explain(ctx, results)
	for _, test := range inOrder() {
		if test != testFamilies && !slices.ContainsFunc(results, func(r Result) bool { return r.Test == test }) {
			results = append(results, Result{Test: test, State: NotTried, Detail: s.whyNot(&o, test)})
		}
	}
	slices.SortStableFunc(results, func(a, b Result) int {
		return cmp.Compare(slices.Index(inOrder(), a.Test), slices.Index(inOrder(), b.Test))
	})
	return results, err
}

func (o *Options) note(format string, args ...any) {
	if o.Notes != nil {
		fmt.Fprintf(o.Notes, format+"\n", args...)
	}
}

// trial carries checks out.
type trial struct {
	*Options
	*stage
}

func (t *trial) everything(ctx context.Context) ([]Result, error) {
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	if err := t.makeSCTP(ctx); err != nil {
		return nil, err
	}
	// Silence says something only of a Service that is served elsewhere.
	var first, silent []*check
	for _, c := range t.checks() {
		if c.want.silent {
			silent = append(silent, c)
		} else {
			first = append(first, c)
		}
	}
	results := slices.Clone(t.missing)
	for _, checks := range [][]*check{first, silent} {
		got, err := t.all(ctx, checks)
		if results = append(results, got...); err != nil {
			return results, err
		}
	}
	if t.Light {
		return results, nil
	}
	changed, err := t.changes(ctx)
	return append(results, changed...), err
}

// ready says whether the clients can try anything.
func (t *trial) ready(ctx context.Context) error {
	for _, c := range t.clients {
		_, err := t.Run(ctx, c.pod, container, "/bin/sh", "-c", readyScript)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s cannot try anything with the image %s: %w", c, t.Image, err)
		}
	}
	return nil
}

// all carries out checks, some at a time. The results are in the order of the checks.
func (t *trial) all(ctx context.Context, checks []*check) ([]Result, error) {
	bar := cluster.NewBar(t.Progress, len(checks), "connecting")
	results := make([]Result, len(checks))
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, c := range checks {
		group.Go(func() error {
			latency := t.Settle
			if c.test == testLoadBalancer {
				latency = balancerLatency
			}
			results[i] = t.carryOut(ctx, c, began.Add(latency))
			_ = bar.Add(1)
			return nil
		})
	}
	_ = group.Wait() // There are no errors.
	_ = bar.Finish()
	return results, context.Cause(ctx)
}

// carryOut tries until it goes as it should, or until the deadline. What goes wrong first and right afterwards has to
// go right twice: that a proxy needed its time is no fault, that it loses some connections is one.
func (t *trial) carryOut(ctx context.Context, c *check, deadline time.Time) Result {
	r := Result{Test: c.test, From: c.from.String(), To: c.to.String(), State: Passed, connection: c.connection()}
	for failed := false; ; {
		wrong, err := t.once(ctx, c)
		switch {
		case ctx.Err() != nil:
			r.State, r.Detail, r.connection = NotTried, context.Cause(ctx).Error(), nil
			return r
		case err != nil:
			r.State, r.Detail, r.connection = Failed, "the client could not try: "+short(err.Error()), nil
			return r
		case wrong == "" && failed:
			if wrong, _ = t.once(ctx, c); wrong == "" {
				return r
			}
			r.Detail = "it worked once, and then: "
		case wrong == "":
			return r
		}
		if failed = true; r.Detail != "" || time.Now().After(deadline) {
			r.State, r.Detail = Failed, r.Detail+wrong
			return r
		}
		timer := time.NewTimer(pauseAfterFail)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// once says what is wrong with one check, and why it could not be carried out.
func (t *trial) once(ctx context.Context, c *check) (wrong string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkPatience, fmt.Errorf("no result within %s", checkPatience))
	defer cancel()
	tries, err := c.from.try(ctx, t.Options, c)
	return c.want.judge(tries), err
}

// explain asks why connections fail: of each kind of check and client once for a family, since the others have the
// same cause. Each client has its share.
func (t *trial) explain(ctx context.Context, results []Result) {
	asked, byClient := map[string]bool{}, map[string]int{}
	for i := range results {
		r := &results[i]
		if r.State != Failed || r.connection == nil {
			continue
		}
		ofPods := stateOf(results, testPods, r)
		switch {
		case r.Test != testPods && ofPods == Failed:
			r.Explanation = append(r.Explanation, "Connections of this client to pods fail without a Service, too: look at "+
				"the pods' network and at network policies first.")
		case r.Test == testName && stateOf(results, testClusterIP, r) == Passed:
			r.Explanation = append(r.Explanation, "The cluster IP answers this client: look at the cluster's DNS.")
		}
		key := fmt.Sprint(r.Test, r.From, r.connection.family())
		if t.Explain == nil || ctx.Err() != nil || asked[key] || len(asked) == mostExplained ||
			byClient[r.From] == mostExplainedClient {
			continue
		}
		asked[key] = true
		byClient[r.From]++
		r.Explanation = append(r.Explanation, t.Explain(ctx, *r.connection)...)
	}
}

// family is 4 or 6, or 0 for a name.
func (c *Connection) family() int {
	switch at, err := netip.ParseAddrPort(c.Address); {
	case err != nil:
		return 0
	case at.Addr().Is4():
		return 4
	}
	return 6
}

// stateOf is how another kind of check went for the client and family of a result; for a name, of any family.
func stateOf(results []Result, test string, like *Result) (state string) {
	for i := range results {
		r := &results[i]
		if r.Test != test || r.From != like.From || r.connection == nil ||
			like.connection.family() != 0 && r.connection.family() != like.connection.family() {
			continue
		}
		if state = r.State; state == Failed {
			return state
		}
	}
	return state
}

// Summary is the results of one kind of check.
type Summary struct {
	Test string
	// State is Failed if one failed, and NotTried if none was tried.
	State string
	// Passed of Tried went as they should.
	Passed, Tried int
	// Detail is the first failure, or what was not tried and why, or what was measured.
	Detail string
}

// Summarize counts the results of each kind of check, in the order of the results.
func Summarize(results []Result) (all []Summary) {
	for _, r := range results {
		i := slices.IndexFunc(all, func(s Summary) bool { return s.Test == r.Test })
		if i < 0 {
			i = len(all)
			all = append(all, Summary{Test: r.Test, State: NotTried})
		}
		s := &all[i]
		if r.State != NotTried {
			s.Tried++
		}
		switch {
		case r.State == Failed && s.State != Failed:
			s.State, s.Detail = Failed, r.Detail
		case r.State == Passed:
			s.Passed++
			if s.State == NotTried {
				s.State = Passed
			}
		}
		s.Detail = cmp.Or(s.Detail, r.Detail)
	}
	return all
}
