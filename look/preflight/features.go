package preflight

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// feature is a part of the program that a kernel may not have, as Services that use it.
type feature struct {
	name string
	// services is a snapshot in the form of service.Parse.
	services string
	// without says what does not work without the feature; needed says that nothing does.
	without string
	needed  bool
}

func features() []feature {
	return []feature{
		{"tables, maps and NAT", "", "nftproxy needs nf_tables, nft_chain_nat and maps with several fields (Linux 5.6)", true},
		{"Services of IPv4", `
service check/v4 created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  port a tcp 80 node-port 30080
    endpoint 10.0.0.1:80 - ready serving
    endpoint 10.0.0.2:80 - ready serving`, "Services of IPv4 are not served", true},
		{"Services of IPv6", `
service check/v6 created 2026-01-01T00:00:00Z
  cluster-ip fd00:96::1
  port a tcp 80 node-port 30080
    endpoint [fd00::1]:80 - ready serving
    endpoint [fd00::2]:80 - ready serving`, "Services of IPv6 are not served", true},
		{"refusals", `
service check/empty created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.2
  cluster-ip fd00:96::2
  port a tcp 80
  port b udp 80`, "Services without endpoints are not refused", false},
		{"SCTP", `
service check/sctp created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.3
  port a sctp 80
    endpoint 10.0.0.1:80 - ready serving`, "Services of SCTP are not served", false},
		{"session affinity", `
service check/sticky created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.4
  affinity 10800s
  port a tcp 80
    endpoint 10.0.0.1:80 - ready serving
    endpoint 10.0.0.2:80 - ready serving`, "Services with session affinity are not served", false},
		{"source ranges", `
service check/closed created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.5
  load-balancer-ip 203.0.113.1
  source-range 198.51.100.0/24
  port a tcp 80
    endpoint 10.0.0.1:80 - ready serving`, "Services with loadBalancerSourceRanges are not served", false},
		{"ServiceCIDRs", "\nservice-cidr 10.96.0.0/16", "packets to addresses of a ServiceCIDR that no Service has are not dropped", false},
	}
}

// features tries each feature in a network namespace that goes with the call.
func (o Options) features() []Finding {
	const probe = "kernel"
	var found []Finding
	err := inScratchNamespace(func() error {
		for _, f := range features() {
			found = append(found, f.try())
		}
		found = append(found, tryOwner(), tryCounters(), tryLabels())
		return nil
	})
	if err != nil {
		return []Finding{yellow(probe, "features cannot be tried: "+err.Error(), "run nftproxy check as root on the node: a network namespace for the trial needs CAP_SYS_ADMIN")}
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

func (f feature) try() Finding {
	probe := "kernel: " + f.name
	err := f.apply()
	switch {
	case err == nil:
		return green(probe, "works")
	case f.needed:
		return red(probe, err.Error(), f.without+": use another kernel, or load the module that it lacks")
	}
	return yellow(probe, err.Error(), f.without+": use another kernel, or load the module that it lacks")
}

// apply compiles the feature's Services and gives the program to the kernel.
func (f feature) apply() error {
	snapshot, err := service.Parse(strings.NewReader("node check\n" + f.services + "\n"))
	if err != nil {
		return err
	}
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	config := ruleset.Config{Table: ruleset.DefaultTable}
	batch, _ := nft.State{}.Plan(ruleset.Compile(config, snapshot), time.Time{})
	return errors.Join(conn.Apply(batch), conn.DeleteTables(ruleset.DefaultTable))
}

// tryOwner tells whether tables can have an owner, which Linux has since 6.9.
func tryOwner() Finding {
	const probe = "kernel: owned tables"
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return failed(probe, err)
	}
	defer conn.Close()
	batch, _ := nft.State{}.Plan(ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, service.Snapshot{Node: &service.Node{}}), time.Time{})
	if err := conn.Apply(batch); err != nil {
		return failed(probe, err)
	}
	owned, err := conn.Owned(nft.TableID{Family: nft.IPv4, Name: ruleset.DefaultTable})
	switch {
	case err != nil:
		return failed(probe, err)
	case !owned:
		return yellow(probe, "the kernel has none (Linux has them since 6.9)", "other programs can change nftproxy's tables; it repairs them within a second")
	}
	return green(probe, "works")
}

// tryCounters tells whether rules can count packets for thousands of Services.
func tryCounters() Finding {
	const probe = "kernel: counters"
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return failed(probe, err)
	}
	defer conn.Close()
	if err := conn.TryCounters(); err != nil {
		return yellow(probe, err.Error(), "the rules have no counters: nftproxy top, and the metrics and events of refusals, stay empty")
	}
	return green(probe, "works")
}

// tryLabels tells whether rules can give labels to connections.
func tryLabels() Finding {
	const probe = "kernel: labels of connections"
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return failed(probe, err)
	}
	defer conn.Close()
	if err := conn.TryLabels(); err != nil {
		return yellow(probe, err.Error(), "the rules use a bit of the packet mark for what is to be masqueraded, as kube-proxy does: other programs' marks may get into each other's way with it")
	}
	return green(probe, "works")
}
