package migration

import (
	"context"
	"errors"
	"fmt"
)

// back are the steps to kube-proxy. nftproxy stays until kube-proxy has the same Services: while the last table that
// uses connection tracking is removed, open connections fail.
func (m *migration) back() []step {
	return []step{
		{name: stepStart, before: m.gateKubeProxy, do: m.startKubeProxy},
		{name: stepAwait, do: m.awaitKubeProxy},
		{name: stepProbe},
		{name: stepHand, before: m.gateOurs, do: m.stopOurs},
		{name: stepCleanUp, do: m.cleanOurs},
		{name: stepProbe},
	}
}

// kubeProxyStays says why kube-proxy does not serve the node from now on; nil if it does.
func (n *node) kubeProxyStays() error {
	if !n.theirs {
		return errors.New("kube-proxy's DaemonSet is not for the node")
	}
	return n.kubeProxyServes()
}

// dueBack names the steps that a node has before it. What nftproxy left where it does not run is only known on the
// node: so each node is cleaned, which changes nothing on a clean one.
func (n *node) dueBack() (due []string) {
	on, gone := n.kubeProxyStays() == nil, n.Pod == nil && !n.ours
	if !on {
		due = append(due, stepStart)
	}
	due = append(due, stepAwait, stepProbe)
	if !gone {
		due = append(due, stepHand)
	}
	return append(due, stepCleanUp)
}

// startKubeProxy has kube-proxy start beside nftproxy. Rules of an earlier kube-proxy go before: they would hide that
// the new one has none yet.
func (m *migration) startKubeProxy(ctx context.Context, n *node) (string, error) {
	seen := ""
	if len(n.kubeProxy) == 0 && !n.theirs {
		cleaned, err := m.cleanOldRules(ctx, n)
		if err != nil {
			return "", err
		}
		seen = cleaned
	}
	if err := m.label(ctx, n.Object, stopLabel, ""); err != nil {
		return "", err
	}
	return seen + "kube-proxy runs", m.awaitThat(ctx, n, n.kubeProxyStays)
}

// cleanOldRules removes what an earlier kube-proxy left on a node. Without a running nftproxy, the rules that nftproxy
// left are not older than those, and stay; where there are none, kube-proxy's are all that the node has, and stay.
func (m *migration) cleanOldRules(ctx context.Context, n *node) (seen string, err error) {
	if n.nftproxyStays() == nil {
		if m.checkClean(ctx, n) == nil {
			return "", nil
		}
		seen, err = m.cleanKubeProxy(ctx, n)
		return seen + ", ", err
	}
	p, err := m.proxiesByPod(ctx, n)
	if err != nil {
		return "", err
	}
	theirs, _, _ := p.rulesOf(KubeProxy)
	_, frontends, _ := p.rulesOf(Nftproxy)
	if len(theirs) == 0 || frontends == 0 {
		return "", nil
	}
	args, err := m.cleanupArgs(ctx, n, "--force")
	if err != nil {
		return "", err
	}
	out, exit, err := m.runOn(ctx, n, m.command(n, args...).onHost())
	if err == nil && exit != 0 && exit != statusLeft {
		err = fmt.Errorf("nftproxy cleanup --kube-proxy --force ended with exit status %d: %s", exit, shortened(out))
	}
	return "what an earlier kube-proxy left is removed, ", err
}

// proxiesByPod reads the rules of a node without the help of its nftproxy.
func (m *migration) proxiesByPod(ctx context.Context, n *node) (*proxies, error) {
	out, exit, err := m.runOn(ctx, n, m.command(n, append([]string{"proxies", "-o", "json"}, n.Tables()...)...))
	if err != nil {
		return nil, err
	}
	if exit != 0 {
		return nil, fmt.Errorf("nftproxy proxies ended with exit status %d: %s", exit, shortened(out))
	}
	return parseProxies(document(out), nil)
}

// awaitKubeProxy waits until kube-proxy has all rules. Where no nftproxy runs, its rules may be out of date, and
// kube-proxy is to have any.
func (m *migration) awaitKubeProxy(ctx context.Context, n *node) (string, error) {
	if n.serves() == nil {
		return m.awaitRules(ctx, n, KubeProxy, Nftproxy)
	}
	frontends := 0
	err := m.await(ctx, n, func(ctx context.Context) error {
		p, err := m.proxiesByPod(ctx, n)
		if err != nil {
			return err
		}
		if _, frontends, _ = p.rulesOf(KubeProxy); frontends == 0 {
			return again(errors.New("kube-proxy has no rules yet"))
		}
		return nil
	})
	return fmt.Sprintf("kube-proxy has rules for %d frontends, nftproxy does not serve", frontends), err
}

// stopOurs ends nftproxy on a node that kube-proxy serves.
func (m *migration) stopOurs(ctx context.Context, n *node) (string, error) {
	if err := n.kubeProxyStays(); err != nil {
		return "", err
	}
	if err := m.label(ctx, n.Object, trialLabel, ""); err != nil {
		return "", err
	}
	err := m.awaitThat(ctx, n, func() error {
		if n.Pod != nil {
			return fmt.Errorf("nftproxy's pod %s is still there", n.Pod.Name)
		}
		return n.kubeProxyStays()
	})
	return "nftproxy has ended, kube-proxy serves", err
}

// cleanOurs removes the rules that nftproxy left.
func (m *migration) cleanOurs(ctx context.Context, n *node) (string, error) {
	if err := m.awaitThat(ctx, n, n.kubeProxyStays); err != nil {
		return "", err
	}
	if n.Pod != nil {
		return "", fmt.Errorf("nftproxy runs again: the pod %s", n.Pod.Name)
	}
	out, exit, err := m.runOn(ctx, n, m.command(n, "cleanup"))
	if err == nil && exit != 0 {
		err = fmt.Errorf("nftproxy cleanup ended with exit status %d: %s", exit, shortened(out))
	}
	return "no rules of nftproxy are left", err
}
