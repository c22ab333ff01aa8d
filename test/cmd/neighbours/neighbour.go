package main

import "context"

// event is something that happens to a neighbour on the node.
type event struct {
	// Name is what a reader calls it.
	Name string
	// Script is what the shell runs in the neighbour's system. It ends when the event is over.
	Script string
}

// neighbour is a program as it is set up for one row.
type neighbour struct {
	// name is unique, and names the file of the result.
	name string
	// program is what operators call it.
	program string
	// what says in some words how the program is set up.
	what string
	// packages are those of Debian whose versions the row names.
	packages []string
	// programs are other programs with their versions.
	programs []string
	// prepare is what the system needs before, such as a message bus. It is no event.
	prepare string
	// setting is what an operator has to set for the traffic of Services; empty if the row is about the program without
	// it.
	setting string
	// unset are the names of rows about the program without that setting.
	unset []string
	// events happen in this order. The first one is the start.
	events []event
	// stop is the last event.
	stop event
	// published is a TCP port of the node that the program itself serves by IPv4 from its start on; 0 if it has none.
	published uint16
	// cache says how the program answers at the Service dns, which exists unless it is noCache.
	cache cache
	// peers are the program at other places. They start in this order.
	peers []peer
	// moving says that the address of the Service moving is at one of both nodes, which both have nftproxy.
	moving bool
	// routed says that the client of that address is behind a router.
	routed bool
	// beside has what happens with an event where nftproxy runs, by the event's name. That of namePrepared is what follows
	// the start of peers.
	beside map[string]func(context.Context, *world) error
	// opens says why flows to Services may work although the program closes the direct way; empty if none may.
	opens string
	// accepts are places whose TCP connections the program accepts itself before it goes on: one that is refused breaks
	// off there.
	accepts []string
	// silences says why a TCP connection of the node that is refused may have no answer; empty if it has to have one.
	silences string
	// drops are the events in which it drops all packets for a while. What begins before such an event is over counts for
	// nobody: how long it takes is a matter of the machine.
	drops []string
	// cuts says that these events also end open connections.
	cuts bool
	// notes are for operators. A result has them only if it is good.
	notes []string
	// loses says why masqueraded connections may be lost at its start and end, even if direct ones survive; empty if none
	// may be.
	loses string
	// record returns what the program has seen since its start, by lines, once it has seen all: without what differs from
	// one connection to the next. Where there is one, nftproxy follows all connections, and the record has to be the same
	// as without that. Nil if the program has none.
	record func(context.Context, *world) (string, error)
	// modules are those of clusterNeighbour.
	modules map[string]string
	// policies are objects of a Kubernetes API server on the node, which the program asks; empty if it asks none.
	policies string
	// calico are objects of Calico's Felix, of trialSetup.calico, which the program then is; empty if it is another one.
	// changes are those that its etcd gets with an event, by the event's name.
	calico  string
	changes map[string]string
	// tool is a program of hack/build-tools.sh, which is in the system's root folder; empty for none.
	tool string
}

// peer is the program's other end, in a system of its own. It runs before the program does.
type peer struct {
	// at is the place of world.places that it is at; the other node if empty.
	at string
	// start has it run. It is no event.
	start string
	// before and after are what it does before and after an event of the program, by the event's name.
	before, after map[string]string
}

// nameStart is the name of each neighbour's first event, and namePrepared that of what is before it.
const nameStart, namePrepared = "starts", "is prepared"

func neighbours() []neighbour {
	var all []neighbour
	all = append(all, nftScripts()...)
	all = append(all, ufws()...)
	all = append(all, firewallds()...)
	all = append(all, bans()...)
	all = append(all, engines()...)
	all = append(all, plugins()...)
	all = append(all, announcers()...)
	all = append(all, routers()...)
	all = append(all, caches()...)
	all = append(all, tunnels()...)
	all = append(all, meshes()...)
	all = append(all, agents()...)
	all = append(all, followers()...)
	all = append(all, queues()...)
	return all
}

// scriptPackages are those of Debian that scripts need.
func scriptPackages() []string {
	return []string{"busybox-static", "iproute2", "mount", "netbase", "procps"}
}

// programs are those in Go of all neighbours, as `go install` names them.
func programs() []string {
	return []string{
		pluginsModule + "/plugins/main/bridge@" + pluginsVersion, pluginsModule + "/plugins/meta/portmap@" + pluginsVersion,
		pluginsModule + "/plugins/ipam/host-local@" + pluginsVersion, coreDNS + "@" + coreDNSVersion, wireGuard + "@" +
			wireGuardVersion,
		istio + "@" + istioVersion,
	}
}

// packages are those of all neighbours, and what the scripts need.
func packages() []string {
	return append(scriptPackages(),
		"nftables", "iptables", "ipset",
		"ufw", "python3",
		"firewalld", "dbus",
		"fail2ban",
		"docker.io", "docker-cli",
		"podman", "crun", "netavark", "aardvark-dns",
		"containernetworking-plugins",
		"keepalived",
		"wireguard-tools",
		"frr", "frr-pythontools",
		"conntrackd", "conntrack", "ulogd2",
	)
}
