package takeover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"nftproxy/nft/kernel"
	"nftproxy/node/otherproxy"
	"nftproxy/node/tablekeeper"
)

// The proxies that a report is about.
const (
	NameOurs   = "nftproxy"
	NameTheirs = "kube-proxy"
)

// Proxies is which service proxies a node has. The help of nftproxy proxies promises the names in the JSON.
type Proxies struct {
	Proxies []Proxy `json:"proxies"`
	// Felix is Calico's agent, which may go by the tables of a proxy; nil if there is none.
	Felix *Felix `json:"felix,omitempty"`
}

// Felix is what a node tells of Calico's agent.
type Felix struct {
	// DataPlanes are those that have its chains, nftables or iptables.
	DataPlanes []string `json:"dataPlanes"`
	// After is the one that it has without kube-proxy's nftables tables: nftables, iptables or unknown. Detail explains
	// it.
	After  string `json:"after"`
	Detail string `json:"detail"`
}

// Proxy is one of them.
type Proxy struct {
	Name string `json:"name"`
	// Running is yes, no or unknown; Detail explains it.
	Running string `json:"running"`
	Detail  string `json:"detail"`
	// Rules lists the tables.
	Rules []string `json:"rules"`
	// Frontends is the number of frontends, and Lacks those of the other proxy that this one
	// does not have, sorted.
	Frontends int      `json:"frontends"`
	Lacks     []string `json:"lacks"`
}

// TakesOver says that a proxy has rules, and all frontends of the other.
func (r Proxies) TakesOver(name string) bool {
	i := slices.IndexFunc(r.Proxies, func(p Proxy) bool { return p.Name == name })
	p := r.Proxies[i]
	return len(p.Rules) > 0 && p.Frontends > 0 && len(p.Lacks) == 0
}

// LookForProxies compares the rules of nftproxy, with this table, and kube-proxy in the kernel. It does not look for
// Felix.
func LookForProxies(ctx context.Context, table string) (Proxies, error) {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return Proxies{}, err
	}
	defer conn.Close()
	ours, err := ourReport(conn)
	if err != nil {
		return Proxies{}, err
	}
	theirs, err := theirReport(ctx)
	if err != nil {
		return Proxies{}, err
	}
	ourFrontends, ourErr := otherproxy.OurFrontends(table)
	theirFrontends, theirErr := otherproxy.KubeProxyFrontends()
	if err := errors.Join(ourErr, theirErr); err != nil {
		return Proxies{}, fmt.Errorf("read the rules: %w", err)
	}
	ours.Frontends, theirs.Frontends = len(ourFrontends), len(theirFrontends)
	ours.Lacks, theirs.Lacks = lacks(ourFrontends, theirFrontends), lacks(theirFrontends, ourFrontends)
	return Proxies{Proxies: []Proxy{ours, theirs}}, nil
}

// LookForFelix returns what the node tells of Calico's agent; nil if there is none. That it cannot be told is no error.
func LookForFelix() *Felix {
	const unknown = "unknown"
	f, err := otherproxy.FindFelix()
	switch {
	case err != nil:
		return &Felix{[]string{}, unknown, "cannot look for it: " + err.Error()}
	case !f.There():
		return nil
	}
	return &Felix{append([]string{}, f.Planes...), cmp.Or(f.After(), unknown), f.String()}
}

// lacks lists the frontends of the other proxy that this one lacks.
func lacks(have, other otherproxy.Frontends) []string {
	missing := []string{}
	for f := range other {
		if !have[f] {
			missing = append(missing, f.String())
		}
	}
	slices.Sort(missing)
	return missing
}

func ourReport(conn *kernel.Conn) (Proxy, error) {
	r := Proxy{Name: NameOurs, Running: "no", Detail: "does not run", Rules: []string{}}
	tables, err := conn.OurTables()
	if err != nil {
		return r, fmt.Errorf("list tables: %w", err)
	}
	keepers, err := tablekeeper.List()
	if err != nil {
		return r, err
	}
	several := ""
	for _, t := range tables {
		r.Rules = append(r.Rules, t.ID.String())
		by := keepers.Texts(t.ID.Name, "")
		if t.Owner != 0 || len(by) > 0 {
			r.Running, r.Detail = "yes", "runs"
		}
		if len(by) > 1 {
			several = fmt.Sprintf("runs %d times with table %s: %s", len(by), t.ID.Name, strings.Join(by, "; "))
		}
	}
	if several != "" {
		r.Detail = several
	}
	return r, nil
}

func theirReport(ctx context.Context) (Proxy, error) {
	r := Proxy{Name: NameTheirs, Running: "unknown", Rules: []string{}}
	found, err := otherproxy.Find()
	if err != nil {
		return r, fmt.Errorf("look for the rules of kube-proxy: %w", err)
	}
	for _, rules := range found {
		r.Rules = append(r.Rules, rules.String())
	}
	running, err := otherproxy.LookForKubeProxy(ctx)
	if err != nil {
		return r, fmt.Errorf("look for kube-proxy: %w", err)
	}
	r.Detail = running.String()
	switch {
	case running.Yes():
		r.Running = "yes"
	case running.No():
		r.Running = "no"
	}
	return r, nil
}
