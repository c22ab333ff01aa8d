package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"nftproxy/test/lib/testnet"
)

// announcers put the address of a load balancer on the node.
func announcers() []neighbour {
	const start = `keepalived --use-file /tmp/keepalived.conf --pid /run/keepalived.pid --vrrp_pid /run/vrrp.pid
until ip addr show dev eth0 | grep -q 203.0.113.10/32 && ip addr show dev eth0 | grep -q 2001:db8::10/128; do sleep 0.1; done
`
	const end = `kill "$(cat /run/keepalived.pid)"
while test -e /run/keepalived.pid; do sleep 0.1; done
`
	return []neighbour{{
		name: "keepalived", program: "keepalived",
		what:     "VRRP puts addresses of a load balancer on the node, and takes them away",
		packages: []string{"keepalived"},
		prepare: `cat >/tmp/keepalived.conf <<'EOF'
global_defs { router_id node }
vrrp_instance four { state MASTER
 interface eth0
 virtual_router_id 10
 priority 100
 advert_int 1
 virtual_ipaddress { 203.0.113.10/32 }
}
vrrp_instance six { state MASTER
 interface eth0
 virtual_router_id 10
 priority 100
 advert_int 1
 virtual_ipaddress { 2001:db8::10/128 }
}
EOF
`,
		events: []event{{nameStart, start}, {"reloads", `kill -HUP "$(cat /run/keepalived.pid)"`}, {"restarts", end + start}},
		stop:   event{"stops", end},
	}, failover(end)}
}

// moving is the Service whose address moves: policy Local, an endpoint on each node, and the second node.
//
//go:embed moving.yaml
var moving string

// The addresses of the Service moving.
const moving4, moving6 = "203.0.113.60", "2001:db8::60"

// failover is keepalived on both nodes, which asks the health check node port where the address of the Service has to
// be.
func failover(end string) neighbour {
	config := func(addr string, priority int) string {
		var instances strings.Builder
		for i, a := range []string{moving4 + "/32", moving6 + "/128"} {
			fmt.Fprintf(&instances, `vrrp_instance family%d {
 state BACKUP
 interface eth0
 virtual_router_id 60
 priority %d
 advert_int 2
 virtual_ipaddress { %s }
 track_script { endpoints }
}
`, i, priority, a)
		}
		// A node that is slow to answer is not one without endpoints.
		return fmt.Sprintf(`cat >/tmp/keepalived.conf <<'EOF'
global_defs {
 router_id node%d
 script_user root
}
vrrp_script endpoints {
 script "/usr/bin/busybox wget -q -O /dev/null http://%s:31260/healthz"
 interval 1
 timeout 50
 fall 1
 rise 1
 weight -20
}
%sEOF
`, priority, addr, instances.String())
	}
	const daemon = "keepalived --use-file /tmp/keepalived.conf --pid /run/keepalived.pid --vrrp_pid /run/vrrp.pid\n"
	const has = "until ip addr show dev eth0 | grep -q " + moving4 + "/32 && ip addr show dev eth0 | grep -q " + moving6 +
		"/128; do sleep 0.1; done\n"
	takes := func(at func(*testnet.Topology) *testnet.Namespace) func(context.Context, *world) error {
		return func(ctx context.Context, w *world) error { return awaitAddrs(ctx, at(w.net), moving4, moving6) }
	}
	node, other := takes(func(t *testnet.Topology) *testnet.Namespace { return t.Node }),
		takes(func(t *testnet.Topology) *testnet.Namespace { return t.Remote })
	return neighbour{
		name: "moving-address", program: "keepalived", moving: true,
		packages: []string{"keepalived"}, prepare: config("192.168.100.1", 100),
		what: "VRRP on two nodes, both with nftproxy, for a load balancer's address with policy Local: the health check " +
			"node port says which node may have it",
		events: []event{
			{nameStart, daemon},
			{"the node's endpoint terminates", ""},
			{"the endpoint is gone", ""},
			{"there is an endpoint again", ""},
			{"restarts", end + daemon},
		},
		stop:  event{"stops", end},
		peers: []peer{{start: config("192.168.100.3", 90) + daemon + has, after: map[string]string{"stops": has}}},
		beside: map[string]func(context.Context, *world) error{
			nameStart:                        node,
			"restarts":                       node,
			"the node's endpoint terminates": publish(terminating(moving, 1), other),
			"the endpoint is gone":           publish(without(moving, 1), other),
			"there is an endpoint again":     publish(moving, node),
		},
	}
}

// terminating has the endpoints on a node terminate, which still serve.
func terminating(objects string, node int) string {
	on := fmt.Sprintf("nodeName: node-%d, conditions: ", node)
	return strings.ReplaceAll(objects, on+"{ready: true, serving: true, terminating: false}",
		on+"{ready: false, serving: true, terminating: true}")
}

// without leaves out the endpoints on a node.
func without(objects string, node int) string {
	var left strings.Builder
	for line := range strings.Lines(objects) {
		if !strings.Contains(line, fmt.Sprintf("nodeName: node-%d", node)) {
			left.WriteString(line)
		}
	}
	return left.String()
}

// publish changes the Service moving, and waits for what comes of it.
func publish(objects string, then func(context.Context, *world) error) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		// The name does not end in .yaml until the file is whole.
		name := filepath.Join(w.dir, "manifests", "moving.yaml")
		if err := os.WriteFile(name+".new", []byte(objects), 0o644); err != nil {
			return err
		}
		if err := os.Rename(name+".new", name); err != nil {
			return err
		}
		return then(ctx, w)
	}
}

// awaitAddrs waits until a namespace has addresses.
func awaitAddrs(ctx context.Context, ns *testnet.Namespace, addrs ...string) error {
	err := poll(ctx, func() (bool, error) {
		there, err := ns.Handle().AddrList(nil, netlink.FAMILY_ALL)
		found := 0
		for _, a := range there {
			if slices.Contains(addrs, a.IP.String()) {
				found++
			}
		}
		return found == len(addrs), err
	})
	if err != nil {
		return fmt.Errorf("await %v: %w", addrs, err)
	}
	return nil
}

// poll asks again and again until something is done.
func poll(ctx context.Context, done func() (bool, error)) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		if is, err := done(); is || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// movingFlows are those to the address that moves.
func (w *world) movingFlows() []flow {
	var all []flow
	add := func(from, to, addr string, want string) {
		for _, proto := range []string{testnet.TCP, testnet.UDP} {
			at := netip.AddrPortFrom(netip.MustParseAddr(addr), 80)
			like := flow{from: "outside", to: "near", protocol: proto, addr: at}
			all = append(all, flow{from: from, to: to, protocol: proto, addr: at, like: like.key(), want: want})
		}
	}
	from := "outside"
	if w.behind != nil {
		from = behind
		add(from, "the address of both nodes", spread4, hidden)
		add(from, "the address of both nodes", spread6, hidden)
	}
	add(from, "the address that moves", moving4, kept)
	add(from, "the address that moves", moving6, kept)
	return all
}

// movingStreams are new connections to that address. Its open connections end when it moves, since other endpoints have
// them then.
func (w *world) movingStreams() []stream {
	var all []stream
	for _, f := range w.movingFlows() {
		all = append(all, stream{from: f.from, protocol: f.protocol, addr: f.addr, strict: true, again: true})
	}
	return all
}

// startMoving serves the Service moving on both nodes. Unless there is a router, the client outside looks for the node
// that has its address.
func (w *world) startMoving(ctx context.Context, routed bool) error {
	if routed {
		if err := w.startRouter(); err != nil {
			return err
		}
	} else {
		out := testnet.End{NS: w.net.Outside, Link: w.net.OutsideLink}
		for _, f := range w.movingFlows() {
			if err := out.Route(netip.PrefixFrom(f.addr.Addr(), f.addr.Addr().BitLen()), netip.Addr{}); err != nil {
				return err
			}
		}
	}
	return errors.Join(publish(moving, func(context.Context, *world) error { return nil })(ctx, w), w.startOther(ctx))
}

// bans are programs that close the node to single clients.
func bans() []neighbour {
	const start = "fail2ban-server -b --logtarget /tmp/fail2ban.log\nuntil fail2ban-client ping; do sleep 0.1; done\n"
	const end = "fail2ban-client stop\nwhile fail2ban-client ping; do sleep 0.1; done\n"
	// The server sets the rules of a ban some time after the command.
	const banned = "banned() { nft list ruleset >/tmp/rules; grep -q 192.168.100.2 /tmp/rules && grep -q fd00:100::2 " +
		"/tmp/rules; }\n"
	one := func(name, what, action string) neighbour {
		return neighbour{
			name: name, program: "fail2ban", what: what, packages: []string{"fail2ban", "nftables", "iptables"},
			prepare: "mkdir -p /run/fail2ban\n: >/tmp/auth.log\nrm -f /etc/fail2ban/jail.d/*\ncat >/etc/fail2ban/jail.local " +
				"<<'EOF'\n[sshd]\nenabled = true\nbackend = polling\nlogpath = /tmp/auth.log\nbanaction = " + action + "\nEOF\n",
			events: []event{
				{nameStart, start},
				{"bans the client outside", banned + "fail2ban-client set sshd banip 192.168.100.2 fd00:100::2\nuntil banned; do " +
					"sleep 0.1; done"},
				{"reloads", banned + "fail2ban-client reload\nuntil banned; do sleep 0.1; done"},
				{"unbans it", "fail2ban-client unban --all\nwhile nft list ruleset | grep -q -e 192.168.100.2 -e fd00:100::2; do " +
					"sleep 0.1; done"},
				{"restarts", end + start},
			},
			stop: event{"stops", end},
		}
	}
	return []neighbour{
		one("fail2ban", "bans by nftables, all ports", "nftables[type=allports]"),
		one("fail2ban-iptables", "bans by iptables, all ports", "iptables-allports"),
	}
}
