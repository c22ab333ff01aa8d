package preflight

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// feature is a part of the program that a kernel may not have, as Services that use it.
type feature struct {
	name string
	// service uses the feature; nil if no Service does. snapshot gives each of its ports so many endpoints.
	service   *service.Service
	endpoints int
	cidr      netip.Prefix
	// without says what does not work without the feature; needed says that nothing does.
	without string
	needed  bool
}

func features() []feature {
	addr, port := netip.MustParseAddr, func(p service.Protocol, nodePort uint16) service.Port {
		return service.Port{Name: strings.ToLower(p.String()), Protocol: p, Port: 80, NodePort: nodePort}
	}
	clusterIP := func(text string, ports ...service.Port) *service.Service {
		return &service.Service{ClusterIPs: []netip.Addr{addr(text)}, Ports: ports}
	}
	empty := clusterIP("10.96.0.2", port(service.TCP, 0), port(service.UDP, 0))
	empty.ClusterIPs = append(empty.ClusterIPs, addr("fd00:96::2"))
	sticky := clusterIP("10.96.0.4", port(service.TCP, 0))
	sticky.AffinityTimeout = 3 * time.Hour
	hashed := clusterIP("10.96.0.6", port(service.TCP, 0))
	hashed.Options.Balance = service.ByFlow
	closed := clusterIP("10.96.0.5", port(service.TCP, 0))
	closed.LoadBalancerIPs = []netip.Addr{addr("203.0.113.1")}
	closed.Sources = service.NewSources([]netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")})
	return []feature{
		{name: "tables, maps and NAT", without: "nftproxy needs nf_tables, nft_chain_nat and maps with several fields " +
			"(Linux 5.6)", needed: true},
		{name: "Services of IPv4", service: clusterIP("10.96.0.1", port(service.TCP, 30080)), endpoints: 2,
			without: "Services of IPv4 are not served", needed: true},
		{name: "Services of IPv6", service: clusterIP("fd00:96::1", port(service.TCP, 30080)), endpoints: 2,
			without: "Services of IPv6 are not served", needed: true},
		{name: "refusals", service: empty, without: "Services without endpoints are not refused"},
		{name: "SCTP", service: clusterIP("10.96.0.3", port(service.SCTP, 0)), endpoints: 1,
			without: "Services of SCTP are not served"},
		{name: "session affinity", service: sticky, endpoints: 2, without: "Services with session affinity are not served"},
		{name: "hashes", service: hashed, endpoints: 2, without: "Services with nftproxy.io/balance, or with session " +
			"affinity beyond its bound, are not served (nft_hash)"},
		{name: "source ranges", service: closed, endpoints: 1, without: "Services with source ranges " +
			"(loadBalancerSourceRanges, nftproxy.io/source-ranges) are not served"},
		{name: "ServiceCIDRs", cidr: netip.MustParsePrefix("10.96.0.0/16"), without: "packets to addresses of a " +
			"ServiceCIDR that no Service has are not dropped"},
	}
}

// snapshot is a cluster with the feature.
func (f feature) snapshot() service.Snapshot {
	b := snapshots.NewBuilder(service.Node{Name: "check"})
	if f.cidr.IsValid() {
		b.SetServiceCIDRs([]netip.Prefix{f.cidr})
	}
	if s := f.service; s != nil {
		s.Name, s.Created = "check/trial", time.Unix(0, 0)
		first := netip.MustParseAddr("10.0.0.1")
		if s.ClusterIPs[0].Is6() {
			first = netip.MustParseAddr("fd00::1")
		}
		for i := range s.Ports {
			var endpoints []service.Endpoint
			for a := first; len(endpoints) < f.endpoints; a = a.Next() {
				endpoints = append(endpoints, service.Endpoint{Addr: netip.AddrPortFrom(a, 80), Ready: true, Serving: true})
			}
			s.Ports[i].Endpoints = service.MergeEndpoints(endpoints)
		}
		b.Set(s)
	}
	return b.Snapshot()
}

// features tries each feature in a network namespace that goes with the call.
func (o Options) features() []Finding {
	const probe = "kernel"
	var found []Finding
	err := inScratchNamespace(func() error {
		for _, f := range features() {
			found = append(found, trial{"kernel: " + f.name, f.apply,
				f.without + ": use another kernel, or load the module that it lacks", f.needed}.check())
		}
		for _, t := range trials() {
			found = append(found, t.check())
		}
		return nil
	})
	if err != nil {
		return []Finding{yellow(probe, "features cannot be tried: "+err.Error(), "run nftproxy check as root on the node: "+
			"a network namespace for the trial needs CAP_SYS_ADMIN")}
	}
	return found
}

// inScratchNamespace calls a function on a thread in a new network namespace. The thread ends with
// the call, and the namespace with it.
func inScratchNamespace(do func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- os.NewSyscallError("unshare", err)
			return
		}
		result <- do()
	}()
	return <-result
}

// apply compiles the feature's Services and gives the program to the kernel.
func (f feature) apply(conn *kernel.Conn) error {
	return errors.Join(apply(conn, f.snapshot()), conn.DeleteTables(ruleset.DefaultTable))
}

func apply(conn *kernel.Conn, s service.Snapshot) error {
	batch, _ := nft.State{}.Plan(ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, s), time.Time{})
	return conn.Apply(batch)
}

// noTrialError says that the kernel could not be asked, so that it is unknown what it has.
type noTrialError struct{ error }

// tryOwner tells whether tables can have an owner.
func tryOwner(conn *kernel.Conn) error {
	if err := apply(conn, service.Snapshot{Node: &service.Node{}}); err != nil {
		return noTrialError{err}
	}
	owned, err := conn.Owned(nft.TableID{Family: nft.IPv4, Name: ruleset.DefaultTable})
	if err != nil {
		return noTrialError{err}
	}
	if !owned {
		return errors.New("the kernel has none (Linux has them since 6.9)")
	}
	return nil
}

// trial tries something that a kernel may not have.
type trial struct {
	probe string
	try   func(*kernel.Conn) error
	// without says what is missing without it; needed says that nothing works then.
	without string
	needed  bool
}

// trials are of what the rules can do without. The daemon tries it in the same way.
func trials() []trial {
	return []trial{
		{probe: "kernel: owned tables", try: tryOwner, without: "other programs can change nftproxy's tables; it repairs " +
			"them within a second"},
		{probe: "kernel: counters", try: (*kernel.Conn).TryCounters, without: "the rules have no counters: nftproxy top, " +
			"and the metrics and events of refusals, stay empty"},
		{probe: "kernel: labels of connections", try: (*kernel.Conn).TryLabels, without: "the rules use a bit of the " +
			"packet mark for what is to be masqueraded, as kube-proxy does: other programs' marks may get into each other's " +
			"way with it"},
		{probe: "kernel: time-outs of connections", try: (*kernel.Conn).TryTimeouts, without: "Services with the " +
			"annotations nftproxy.io/udp-timeouts and nftproxy.io/tcp-established-timeout have the node's time-outs, and an " +
			"event says so"},
	}
}

func (t trial) check() Finding {
	conn, err := kernel.Open(kernel.Config{})
	if err == nil {
		defer conn.Close()
		err = t.try(conn)
	} else {
		err = noTrialError{err}
	}
	switch {
	case err == nil:
		return green(t.probe, "works")
	case t.needed:
		return red(t.probe, err.Error(), t.without)
	case errors.As(err, new(noTrialError)):
		return failed(t.probe, err)
	}
	return yellow(t.probe, err.Error(), t.without)
}
