// Package migration moves the nodes of a running cluster from kube-proxy to nftproxy, or back, as docs/migrate.md
// does by hand: a few nodes at a time, each step checked, and it stops at the first node that is not right. It
// remembers nothing: what is to be done is read from labels of Nodes, from pods and from the rules of each node. So
// a run that was ended anywhere is continued by another.
//
// The package installs and removes no proxy: their DaemonSets belong to Helm, kustomize or kubeadm. It only says on
// which nodes they run.
package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/model/printable"
)

// The proxies, by which both directions are named.
const (
	Nftproxy  = "nftproxy"
	KubeProxy = "kube-proxy"
)

// Options say what to do.
type Options struct {
	// To is the proxy that the nodes are to have.
	To string
	// Nodes chooses nodes by their labels.
	Nodes labels.Selector
	// AtOnce is how many nodes are changed at a time, after the first.
	AtOnce int
	// Patience is how long a node may take for what is waited for, and Period the time between two looks.
	Patience, Period time.Duration
	// Probe says whether Services answer on nodes; nil if nobody asks them.
	Probe func(ctx context.Context, nodes []string) error
	// AcceptMarks goes on where marks of another program may depend on the order of chains.
	AcceptMarks bool
	// AcceptCalico goes on where Calico's Felix may change its data plane.
	AcceptCalico bool
	// Out gets a line for each step of a node.
	Out io.Writer
}

// StoppedError says at which node the migration stopped.
type StoppedError struct {
	Node, Step string
	Err        error
}

func (e *StoppedError) Error() string { return fmt.Sprintf("%s: %s: %v", e.Node, e.Step, e.Err) }

// Unwrap returns why.
func (e *StoppedError) Unwrap() error { return e.Err }

// migration is one run.
type migration struct {
	Options
	of *cluster.Cluster
	// steps are those of the direction, in their order.
	steps []step

	// leftOver are pods of a killed run, which are waited for on each node.
	leftOver []string

	// felix has the FelixConfigurations, or why they are not known.
	felix struct {
		once sync.Once
		list []felixConfiguration
		err  error
	}

	turn sync.Mutex // of lines, and what is below
	// staying are nodes where some of kube-proxy's rules stay.
	staying []string
}

// step is what is done to a node, if it is due.
type step struct {
	name string
	// before prepares the cluster, once for each batch; nil for nothing.
	before func(context.Context, []*node) error
	// do takes a node through the step, and says in a few words what it saw.
	do func(context.Context, *node) (string, error)
}

// The steps. The names of those that both directions have are the same.
const (
	stepCheck   = "check"
	stepServe   = "serve"
	stepVerify  = "verify"
	stepStart   = "start kube-proxy"
	stepAwait   = "await its rules"
	stepProbe   = "probe"
	stepHand    = "hand over"
	stepCleanUp = "clean up"
)

func newMigration(of *cluster.Cluster, o Options) *migration {
	m := &migration{Options: o, of: of}
	m.steps = m.forth()
	if o.To == KubeProxy {
		m.steps = m.back()
	}
	return m
}

// Run migrates the nodes. The error is a *StoppedError if a node is not right, and an *ObstacleError if nothing was
// changed because something cannot be done.
func Run(ctx context.Context, of *cluster.Cluster, o Options) error {
	m := newMigration(of, o)
	if err := m.obstacles(ctx); err != nil {
		return err
	}
	_, err := m.of.DaemonSets(ctx)
	if errors.Is(err, cluster.ErrNotInstalled) {
		return m.alone(ctx, m.reopen)
	}
	if err := m.sayWhoUndoes(ctx); err != nil {
		return err
	}
	return m.alone(ctx, m.migrate)
}

// migrate takes all nodes through the steps. Nodes that join meanwhile are taken after the others.
func (m *migration) migrate(ctx context.Context) error {
	if err := m.removeLeftPods(ctx); err != nil {
		return err
	}
	if m.Probe == nil {
		m.say("all nodes", stepProbe, "no probe: whether Services answer is not tried")
	}
	taken := map[types.UID]bool{}
	var conclude func(context.Context, *view) error
	for {
		v, err := m.look(ctx)
		if none := (*ObstacleError)(nil); errors.As(err, &none) && len(taken) > 0 {
			m.say("all nodes", stepFinish, "none of them is left") // They have other labels, or have been removed.
			return m.rulesStay()
		}
		if err != nil {
			return err
		}
		todo := slices.DeleteFunc(slices.Clone(v.nodes), func(n *node) bool { return len(n.due) == 0 || taken[n.Object.UID] })
		if len(todo) == 0 {
			if err := m.stayRight(v, taken); err != nil {
				return err
			}
			if conclude != nil {
				return cmp.Or(conclude(ctx, v), m.rulesStay())
			}
			if conclude, err = m.finish(ctx, v); err != nil {
				return err
			}
			continue
		}
		some := len(taken) > 0 || len(todo) < v.found
		// A node that is ill is not to hold up the others.
		ill := todo
		if todo = slices.DeleteFunc(slices.Clone(todo), (*node).ill); len(todo) == 0 {
			return m.stopAtIll(ill)
		}
		// Nodes between two proxies should not wait for the check of the others.
		if begun := slices.DeleteFunc(slices.Clone(todo), (*node).unserved); len(begun) > 0 {
			todo = begun
		} else if err := m.checkNodes(ctx, todo); err != nil {
			return err
		}
		for batch := range m.batches(todo, some) {
			if err := m.take(ctx, batch); err != nil {
				return err
			}
			for _, n := range batch {
				taken[n.Object.UID] = true
			}
		}
	}
}

// rulesStay says on which nodes some of kube-proxy's rules stay; nil if on none.
func (m *migration) rulesStay() error {
	if m.To != Nftproxy || len(m.staying) == 0 {
		return nil
	}
	slices.Sort(m.staying)
	return &StoppedError{Node: strings.Join(m.staying, ", "), Step: stepCleanUp, Err: errors.New("some of kube-proxy's " +
		"rules stay: do what the node's line says, and run the same command again later")}
}

// unserved says that the node is to be checked before all else.
func (n *node) unserved() bool { return slices.Contains(n.due, stepCheck) }

// ill says that the node is not to be changed now.
func (n *node) ill() bool { return n.well() != nil }

// stopAtIll stops where only nodes are left that are ill.
func (m *migration) stopAtIll(nodes []*node) error {
	var names, whys []string
	for _, n := range nodes {
		names, whys = append(names, n.Name), append(whys, n.well().Error())
		m.say(n.Name, n.due[0], "NOT RIGHT: "+n.well().Error())
	}
	return &StoppedError{Node: strings.Join(names, ", "), Step: nodes[0].due[0],
		Err: errors.New(strings.Join(slices.Compact(whys), "; "))}
}

// batches yields the nodes with the fewest steps left first. The first batch has one node, unless some nodes have been
// migrated.
func (m *migration) batches(nodes []*node, some bool) func(func([]*node) bool) {
	slices.SortStableFunc(nodes, func(a, b *node) int { return len(a.due) - len(b.due) })
	return func(yield func([]*node) bool) {
		for len(nodes) > 0 {
			size := 1
			if some {
				size = min(m.AtOnce, len(nodes))
			}
			if !yield(nodes[:size]) {
				return
			}
			nodes, some = nodes[size:], true
		}
	}
}

// take takes a batch through the steps that are due, each on all nodes before the next.
func (m *migration) take(ctx context.Context, batch []*node) error {
	if err := m.awaitLeftPods(ctx, batch); err != nil {
		return err
	}
	for _, s := range m.steps {
		at := slices.DeleteFunc(slices.Clone(batch), func(n *node) bool { return n.gone || !slices.Contains(n.due, s.name) })
		if len(at) == 0 {
			continue
		}
		if s.before != nil {
			if err := s.before(ctx, at); err != nil {
				return err
			}
		}
		if s.name == stepProbe {
			if err := m.probe(ctx, at); err != nil {
				return err
			}
		} else if err := m.each(ctx, s, at, len(at)); err != nil {
			if s.name == stepHand && ctx.Err() == nil {
				err = errors.Join(err, m.cleanUpOthers(ctx, batch))
			}
			return err
		}
	}
	return nil
}

// cleanUpOthers takes the nodes of a batch that could be handed over through clean up, after others could not: rules
// that stay on them would become outdated.
func (m *migration) cleanUpOthers(ctx context.Context, batch []*node) error {
	i := slices.IndexFunc(m.steps, func(s step) bool { return s.name == stepCleanUp })
	handed := slices.DeleteFunc(slices.Clone(batch), func(n *node) bool { return n.failed || n.gone })
	return m.each(ctx, m.steps[i], handed, max(1, len(handed)))
}

// probe asks for the Services on all nodes of a batch.
func (m *migration) probe(ctx context.Context, at []*node) error {
	if m.Probe == nil {
		return nil
	}
	var names []string
	for _, n := range at {
		names = append(names, n.Name)
	}
	text := strings.Join(names, ", ")
	if err := m.Probe(ctx, names); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return &StoppedError{Node: text, Step: stepProbe, Err: err}
	}
	m.say(text, stepProbe, "the Services answer")
	return nil
}

// each takes nodes through one step. It returns when all have ended, so that no node is left behind in it.
func (m *migration) each(ctx context.Context, s step, at []*node, atOnce int) error {
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, n := range at {
		group.Go(func() error {
			seen, err := m.on(ctx, s, n)
			switch {
			case err == nil:
				m.say(n.Name, s.name, seen)
			case ctx.Err() != nil: // The error says nothing of the node.
			case m.left(ctx, n):
				m.say(n.Name, s.name, "the node has left the cluster")
			default:
				n.failed = true
				m.say(n.Name, s.name, "NOT RIGHT: "+err.Error())
				return &StoppedError{Node: n.Name, Step: s.name, Err: err}
			}
			return nil
		})
	}
	err := group.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// on takes one node through one step, if the node is well.
func (m *migration) on(ctx context.Context, s step, n *node) (string, error) {
	if err := m.refresh(ctx, n); err != nil {
		return "", err
	}
	if err := n.well(); err != nil {
		return "", err
	}
	return s.do(ctx, n)
}

// left says whether a node has been removed from the cluster, or made anew.
func (m *migration) left(ctx context.Context, n *node) bool {
	now, err := m.of.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	n.gone = apierrors.IsNotFound(err) || err == nil && now.UID != n.Object.UID
	return n.gone
}

// say writes a line about a node.
func (m *migration) say(at, step, text string) {
	m.turn.Lock()
	defer m.turn.Unlock()
	// An error means that nobody reads.
	_, _ = fmt.Fprintln(m.Out, printable.Text(at+": "+step+": "+text))
}

// saySpared names the nodes that keep what they have.
func (m *migration) saySpared(v *view) {
	for _, name := range v.spared {
		m.say(name, "has kube-proxy", "keeps it: nftproxy's DaemonSet is not for this node")
	}
	for _, name := range v.foreign {
		m.say(name, "has no proxy", "is left as it is: kube-proxy's DaemonSet is not for this node")
	}
}

// errReplaced says that a node is not the one that was looked at.
var errReplaced = errors.New("the node was made anew")

// notReady says why a node is not Ready; nil if it is.
func notReady(n *corev1.Node) error {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			if c.Status == corev1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("the node is not Ready: %s", cmp.Or(c.Message, c.Reason, string(c.Status)))
		}
	}
	return errors.New("the node is not Ready: its kubelet has said nothing")
}
