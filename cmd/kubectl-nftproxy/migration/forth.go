package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// forth are the steps to nftproxy. A node keeps kube-proxy until nftproxy has the same Services, and kube-proxy's
// rules until its process has ended.
func (m *migration) forth() []step {
	return []step{
		{name: stepServe, do: m.serve},
		{name: stepVerify, do: m.verify},
		{name: stepProbe},
		{name: stepHand, before: m.gateKubeProxy, do: m.stopKubeProxy},
		{name: stepCleanUp, do: m.cleanKubeProxy},
		{name: stepProbe},
	}
}

// nftproxyStays says why nftproxy does not serve the node from now on; nil if it does. A pod may be ready although its
// DaemonSet is about to remove it.
func (n *node) nftproxyStays() error {
	if !n.ours {
		return errors.New("nftproxy's DaemonSet is not for the node")
	}
	return n.serves()
}

// dueForth names the steps that a node has before it.
func (n *node) dueForth() (due []string) {
	served, off := n.nftproxyStays() == nil, len(n.kubeProxy) == 0 && !n.theirs
	if n.Pod == nil || !off {
		due = append(due, stepCheck)
	}
	if !served {
		due = append(due, stepServe)
	}
	clean := false
	if n.rules != nil {
		tables, _, _ := n.rules.rulesOf(KubeProxy)
		clean = len(tables) == 0
	}
	if served && off && clean {
		return due
	}
	due = append(due, stepVerify, stepProbe)
	if !off {
		due = append(due, stepHand)
	}
	return append(due, stepCleanUp)
}

// document is the JSON object that a pod has printed, or its log if there is none. What went to stderr is there, too.
func document(log string) []byte {
	for rest, more := log, true; more; _, rest, more = strings.Cut(rest, "\n") {
		var object json.RawMessage
		if strings.HasPrefix(rest, "{") && json.NewDecoder(strings.NewReader(rest)).Decode(&object) == nil {
			return object
		}
	}
	return []byte(log)
}

// The levels of nftproxy check.
const (
	levelGreen  = "green"
	levelYellow = "yellow"
	levelRed    = "red"
)

// checksAtOnce is how many nodes are checked at a time. Nothing is changed there.
const checksAtOnce = 20

// checkNodes checks all nodes where kube-proxy has not been handed over yet, before one of them is changed.
func (m *migration) checkNodes(ctx context.Context, nodes []*node) error {
	if m.To != Nftproxy {
		return nil
	}
	return m.each(ctx, step{name: stepCheck, do: m.check}, nodes, checksAtOnce)
}

// check runs nftproxy check on a node.
func (m *migration) check(ctx context.Context, n *node) (string, error) {
	out, exit, err := m.runOn(ctx, n, m.command(n, "check", "-o", "json").withAllRights())
	if err != nil {
		return "", err
	}
	var report struct {
		Findings []finding `json:"findings"`
	}
	if err := json.Unmarshal(document(out), &report); err != nil || len(report.Findings) == 0 {
		return "", fmt.Errorf("nftproxy check ended with exit status %d: %s", exit, shortened(out))
	}
	if slices.ContainsFunc(report.Findings, func(f finding) bool { return f.isCalico() && f.Level == levelYellow }) {
		mode, err := m.felixMode(ctx, n)
		settle(report.Findings, mode, err)
	}
	return m.judge(report.Findings)
}

// finding is one of nftproxy check.
type finding struct {
	Probe string `json:"probe"`
	Level string `json:"level"`
	Found string `json:"found"`
	Do    string `json:"do"`
}

// isMarks says whether a finding is that of a chain whose marks depend on which proxy's chains are newer.
func (f *finding) isMarks() bool { return f.Probe == "marks" || strings.HasPrefix(f.Probe, "marks: ") }

// judge says what was found on a node. The error is what has to be done before the migration.
func (m *migration) judge(findings []finding) (string, error) {
	var red, stops, yellow []string
	accept := ""
	for _, f := range findings {
		text := f.Probe + ": " + f.Found
		if f.Do != "" {
			text += " -> " + f.Do
		}
		switch {
		case f.Level == levelRed:
			red = append(red, text)
		case f.Level == levelYellow && f.isMarks() && !m.AcceptMarks:
			stops, accept = append(stops, text), accept+" --accept-marks"
		case f.Level == levelYellow && f.isCalico() && !m.AcceptCalico:
			stops, accept = append(stops, text), accept+" --accept-calico"
		case f.Level == levelYellow:
			yellow = append(yellow, text)
		}
	}
	switch {
	case len(red) > 0:
		return "", errors.New("red: " + strings.Join(append(red, stops...), "; "))
	case len(stops) > 0:
		return "", fmt.Errorf("yellow: %s (%s goes on all the same)", strings.Join(stops, "; "), accept[1:])
	case len(yellow) > 0:
		return "nothing is red; yellow: " + strings.Join(yellow, "; "), nil
	}
	return "everything is green", nil
}

// serve has nftproxy start beside kube-proxy.
func (m *migration) serve(ctx context.Context, n *node) (string, error) {
	if !n.ours {
		if err := m.label(ctx, n.Object, trialLabel, "true"); err != nil {
			return "", err
		}
	}
	return "nftproxy is ready", m.awaitThat(ctx, n, n.nftproxyStays)
}

// verify compares nftproxy's rules with the Services, and with kube-proxy's rules while kube-proxy keeps these up to
// date.
func (m *migration) verify(ctx context.Context, n *node) (string, error) {
	if err := m.awaitThat(ctx, n, n.nftproxyStays); err != nil {
		return "", err
	}
	services, err := m.verifyRules(ctx, n)
	if err != nil {
		return "", err
	}
	seen := fmt.Sprintf("the rules are those of the %d Services", services)
	if len(n.kubeProxy) == 0 {
		return seen, nil // What kube-proxy left is out of date.
	}
	has, err := m.awaitRules(ctx, n, Nftproxy, KubeProxy)
	return seen + ", " + has, err
}

// verified is what nftproxy verify prints, with the fields that are read here.
type verified struct {
	Same        bool `json:"same"`
	Services    int  `json:"services"`
	Missing     int  `json:"missing"`
	Extra       int  `json:"extra"`
	Changed     int  `json:"changed"`
	Differences []struct {
		Service string `json:"service"`
		Kind    string `json:"kind"`
		Name    string `json:"name"`
		Is      string `json:"is"`
	} `json:"differences"`
}

// verifyTries is how often the rules are compared: a cluster in which much changes may differ at one look.
const verifyTries = 3

func (m *migration) verifyRules(ctx context.Context, n *node) (services int, err error) {
	for try := range verifyTries {
		if try > 0 {
			if err := m.pause(ctx); err != nil {
				return 0, err
			}
		}
		var text []byte
		text, err = m.ask(ctx, n, "verify", "-o", "json", "--limit", "5")
		const different = 1
		if exit := (*cluster.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.Status != different) {
			return 0, err
		}
		var r verified
		if err := json.Unmarshal(text, &r); err != nil {
			return 0, fmt.Errorf("nftproxy verify has printed what cannot be read: %q (%w)", shortened(string(text)), err)
		}
		if r.Same {
			return r.Services, nil
		}
		err = fmt.Errorf("nftproxy's rules differ from the Services: %s", differences(&r))
	}
	return 0, err
}

// pause waits for the time between two looks.
func (m *migration) pause(ctx context.Context) error {
	select {
	case <-time.After(m.Period):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func differences(r *verified) string {
	list := []string{fmt.Sprintf("%d missing, %d extra, %d changed", r.Missing, r.Extra, r.Changed)}
	for _, d := range r.Differences {
		list = append(list, fmt.Sprintf("%s %s %s of %s", d.Is, d.Kind, d.Name, cmp.Or(d.Service, "no Service")))
	}
	return strings.Join(list, "; ")
}

// longestAwait bounds how long nftproxy proxies waits on a node.
const longestAwait = 2 * time.Minute

// awaitRules waits until a proxy has rules for every frontend of the other.
func (m *migration) awaitRules(ctx context.Context, n *node, name, other string) (string, error) {
	timeout := min(longestAwait, m.Patience/2)
	text, err := m.ask(ctx, n, append([]string{"proxies", "-o", "json", "--await", name, "--timeout", timeout.String()},
		n.Tables()...)...)
	exit := (*cluster.ExitError)(nil)
	if err != nil && !errors.As(err, &exit) {
		return "", err
	}
	p, unreadable := parseProxies(text, nil)
	if unreadable != nil {
		return "", errors.Join(err, unreadable)
	}
	_, _, lacks := p.rulesOf(name)
	_, frontends, _ := p.rulesOf(other)
	if err != nil {
		return "", fmt.Errorf("%s lacks %d of the %d frontends of %s after %s: %s", name, len(lacks), frontends, other,
			timeout, shortened(strings.Join(lacks, ", ")))
	}
	return fmt.Sprintf("%s has all %d frontends of %s", name, frontends, other), nil
}

// stopKubeProxy ends kube-proxy on a node that nftproxy serves.
func (m *migration) stopKubeProxy(ctx context.Context, n *node) (string, error) {
	if err := m.awaitThat(ctx, n, n.nftproxyStays); err != nil {
		return "", err
	}
	if err := m.label(ctx, n.Object, stopLabel, stopValue); err != nil {
		return "", err
	}
	err := m.awaitThat(ctx, n, func() error {
		if len(n.kubeProxy) > 0 {
			return fmt.Errorf("kube-proxy's pod %s is still there", n.kubeProxy[0].Name)
		}
		return n.nftproxyStays()
	})
	return "kube-proxy has ended, nftproxy serves", err
}

// The exit status of nftproxy cleanup --kube-proxy where what is left has to stay.
const statusLeft = 3

// cleanKubeProxy removes the rules that kube-proxy left.
func (m *migration) cleanKubeProxy(ctx context.Context, n *node) (string, error) {
	args, err := m.cleanupArgs(ctx, n)
	if err != nil {
		return "", err
	}
	accept, err := m.acceptCalico(ctx, n)
	if err != nil {
		return "", err
	}
	if accept {
		args = append(args, "--accept-calico")
	}
	// nftproxy's pod may be replaced just now, and then the command refuses. So it gets a second try.
	for try := 1; ; try++ {
		if err := m.awaitThat(ctx, n, n.nftproxyStays); err != nil {
			return "", err
		}
		if len(n.kubeProxy) > 0 {
			return "", fmt.Errorf("kube-proxy runs again: the pod %s", n.kubeProxy[0].Name)
		}
		out, exit, err := m.runOn(ctx, n, m.command(n, args...).onHost())
		switch {
		case err != nil:
			return "", err
		case exit == statusLeft:
			m.turn.Lock()
			m.staying = append(m.staying, n.Name)
			m.turn.Unlock()
			return "some of kube-proxy's rules stay: " + shortened(out), nil
		case exit == 0:
			return "no rules of kube-proxy are left", m.checkClean(ctx, n)
		case try > 1:
			return "", fmt.Errorf("nftproxy cleanup --kube-proxy ended with exit status %d: %s (an image of nftproxy that is "+
				"older than this program, and has no status %d, ends so where rules have to stay, too)", exit, shortened(out),
				statusLeft)
		}
	}
}

// cleanupArgs are the arguments of the command that removes kube-proxy's rules on a node.
func (m *migration) cleanupArgs(ctx context.Context, n *node, more ...string) ([]string, error) {
	exclude, err := m.excludedCIDRs(ctx, n)
	if err != nil {
		return nil, err
	}
	args := append([]string{"cleanup", "--kube-proxy"}, more...)
	if exclude != "" {
		args = append(args, "--ipvs-exclude-cidrs="+exclude)
	}
	return args, nil
}

// checkClean looks whether kube-proxy's rules are gone, and stay so.
func (m *migration) checkClean(ctx context.Context, n *node) error {
	text, err := m.ask(ctx, n, append([]string{"proxies", "-o", "json"}, n.Tables()...)...)
	p, err := parseProxies(text, err)
	if err != nil {
		return err
	}
	if tables, _, _ := p.rulesOf(KubeProxy); len(tables) > 0 {
		return fmt.Errorf("kube-proxy's rules are there again: %s", strings.Join(tables, ", "))
	}
	return nil
}
