package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/look/othertables"
	"nftproxy/nft/kernel"
	"nftproxy/node/otherproxy"
	"nftproxy/node/tablekeeper"
)

// rights tells whether the process may do what nftproxy run has to.
func (o Options) rights() []Finding {
	const probe = "rights"
	text, err := os.ReadFile(filepath.Join(o.Proc, "thread-self/status"))
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	effective := uint64(0)
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(line, "CapEff:"); is {
			if effective, err = strconv.ParseUint(strings.TrimSpace(value), 16, 64); err != nil {
				return []Finding{failed(probe, err)}
			}
		}
	}
	if effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return []Finding{red(probe, "this process lacks CAP_NET_ADMIN", "be root, or give the container the capability "+
			"NET_ADMIN; some container runtimes give it to root only")}
	}
	return []Finding{green(probe, "CAP_NET_ADMIN")}
}

// fullFrom is the share of the connection tracking table, in percent, from which on a new proxy's
// start is a risk.
const fullFrom = 75

// conntrack tells whether connection tracking answers, and how full its table is.
func (o Options) conntrack(ctx context.Context) []Finding {
	const probe = "connection tracking"
	table, err := conntrack.Open(conntrack.Config{})
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	defer table.Close()
	entries, limit, err := table.Count(ctx)
	invalid := o.invalid(ctx, table)
	switch {
	case errors.Is(err, unix.EINVAL):
		return []Finding{red(probe, "the kernel does not answer", "load the module nf_conntrack_netlink: without it stale "+
			"UDP flows stay")}
	case err != nil:
		return []Finding{failed(probe, err)}
	case limit > 0 && entries*100 >= limit*fullFrom:
		return []Finding{invalid, yellow(probe, fmt.Sprintf("%d of %d entries", entries, limit),
			"raise --conntrack-min or --conntrack-max-per-core: when the table is full, new connections fail")}
	case limit > 0:
		return []Finding{invalid, green(probe, fmt.Sprintf("%d of %d entries", entries, limit))}
	}
	return []Finding{invalid, green(probe, fmt.Sprintf("%d entries", entries))}
}

// invalid tells how many packets belonged to no connection. Some do on every node, so the number alone is no fault.
func (o Options) invalid(ctx context.Context, table *conntrack.Table) Finding {
	const probe = "connection tracking: invalid packets"
	n, err := table.Invalid(ctx)
	if err != nil {
		return failed(probe, err)
	}
	found := fmt.Sprintf("%d since the node started", n)
	if n > 0 {
		found += "; if connections to Services are reset while the number grows, see --conntrack-tcp-be-liberal"
	}
	return green(probe, found)
}

// proxies looks for other service proxies, and for tables that earlier runs of nftproxy left.
func (o Options) proxies(ctx context.Context) []Finding {
	const probe = "other proxies"
	rules, err := otherproxy.Find()
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	running, err := otherproxy.LookForKubeProxy(ctx)
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	var found []Finding
	if running.Yes() {
		found = append(found, green(probe+": kube-proxy", "kube-proxy "+running.String()+
			"; nftproxy can start beside it (docs/migrate.md)"))
	}
	for _, r := range rules {
		found = append(found, ruleFinding(probe, r, running))
	}
	found = append(found, o.keepers(probe)...)
	found = append(found, o.otherTables(probe)...)
	if len(found) == 0 {
		return []Finding{green(probe, "kube-proxy "+running.String()+", and has no rules")}
	}
	return found
}

func ruleFinding(probe string, r otherproxy.Rules, running otherproxy.Running) Finding {
	probe += ": " + r.String()
	switch {
	case r.Keep != nil:
		return yellow(probe, r.Keep.Error(), "nftproxy does not remove these rules; see docs/migrate.md")
	case r.Sign():
		return green(probe, "left for Calico; it serves nothing")
	case running.No():
		return yellow(probe, "rules of a kube-proxy that does not run", "start nftproxy, then run nftproxy cleanup "+
			"--kube-proxy: these rules go out of date")
	case running.Yes():
		return green(probe, "rules of a kube-proxy that runs")
	}
	return yellow(probe, "rules of kube-proxy; whether it runs cannot be seen from here",
		"once it is stopped and nftproxy serves: nftproxy cleanup --kube-proxy")
}

// keepers is a finding if several processes keep our tables. Where tables have an owner, all
// but one wait for it; elsewhere they undo each other's changes.
func (o Options) keepers(probe string) []Finding {
	by, err := tablekeeper.Describe(o.Table, "")
	switch {
	case err != nil:
		return []Finding{failed(probe, err)}
	case len(by) < 2:
		return nil
	}
	return []Finding{yellow(probe+": nftproxy", fmt.Sprintf("%d processes keep table %s: %s", len(by), o.Table,
		strings.Join(by, "; ")),
		"run one nftproxy on a node, or give one of them another --nftproxy-table; "+
			"in a rolling update two are there for a moment")}
}

// otherTables are findings about tables that an nftproxy has made with another name.
func (o Options) otherTables(probe string) []Finding {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	defer conn.Close()
	others, err := othertables.Find(conn, o.Table)
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	var found []Finding
	for _, t := range others {
		switch name := probe + ": table " + t.Name; t.Problem(o.Table) {
		case "":
			found = append(found, green(name, "of "+t.Kept()+"; it has no address and port of table "+o.Table))
		default:
			found = append(found, yellow(name, t.Problem(o.Table), t.Remedy()))
		}
	}
	return found
}

// sysctl reads a setting of the network namespace; found is false where the kernel has none.
func (o Options) sysctl(name string) (value string, found bool, err error) {
	text, err := os.ReadFile(filepath.Join(o.Proc, "sys", strings.ReplaceAll(name, ".", "/")))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	return strings.TrimSpace(string(text)), err == nil, err
}
