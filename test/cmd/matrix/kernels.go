package main

import (
	"fmt"
	"path"
	"slices"
)

// release is a release of Debian, whose newest kernel a machine has.
type release struct {
	name string
	// series is the kernel's, which does not change in a release, with what a machine lacks of it. Debian's backports
	// change theirs.
	series string
	// lacks has patterns (path.Match) of modules that the machine does not have. Nothing of ours may ask for one.
	lacks []string
	// onDemand has patterns of modules that are loaded when the kernel asks for them, as on a node, and not at the start.
	onDemand []string
}

func releases() []release {
	trixie := release{name: "trixie", series: "6.12", onDemand: []string{"sctp"}}
	return []release{
		{name: "bullseye", series: "5.10", onDemand: []string{"sctp"}},
		{name: "bookworm", series: "6.1", onDemand: []string{"sctp"}},
		trixie,
		trixie.withoutIPTables(),
		{name: "trixie-backports", series: "newest", onDemand: []string{"sctp"}},
	}
}

// nfTablesOnly ends the series of a machine without iptables.
const nfTablesOnly = "-nf_tables"

// findRelease is the release of a series: of each there is one whose only packet filter is nf_tables.
func findRelease(series string) (release, error) {
	for _, r := range releases() {
		if r.series == series {
			return r, nil
		}
		if r.series+nfTablesOnly == series {
			return r.withoutIPTables(), nil
		}
	}
	return release{}, fmt.Errorf("the kernel %s is not known", series)
}

// withoutIPTables is the release for a machine as a node of RHEL 10, whose only packet filter is nf_tables, of which
// nothing is loaded at its start. What it lacks are the modules of iptables, ebtables, ipset and IPVS, and that by
// which iptables-nft uses those of iptables.
func (r release) withoutIPTables() release {
	r.series += nfTablesOnly
	r.lacks = []string{"x_tables", "xt_*", "ip_tables", "iptable_*", "ipt_*", "ip6_tables", "ip6table_*", "ip6t_*", "ebt*",
		"arp_tables", "arptable_*", "arpt_*", "ip_set*", "ip_vs*", "nft_compat"}
	r.onDemand = []string{"sctp", "nf_*", "nft_*", "nfnetlink*"}
	return r
}

// matches says whether one of the patterns is a name's.
func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		found, err := path.Match(p, name)
		return err == nil && found
	})
}

// kernelPackage stands for the newest kernel of a release, without the architecture. The kernels for
// clouds are the others without drivers of hardware: their parts for networks are the same.
const kernelPackage = "linux-image-cloud-"

// Machines have the commands of one release whatever their kernel: what differs is then the kernel's.
const commandRelease = "trixie"

// commandPackages have the commands that tests need.
func commandPackages() []string {
	return []string{"nftables", "iptables", "coreutils", "ipset", "ipvsadm"}
}

// ipvsTests is the package whose tests need kube-proxy: --packages chooses it, and a machine without iptables has it.
const ipvsTests = "test/ipvs"

// tested are the packages whose tests run on the release's machine by default.
func (r release) tested() []string {
	if len(r.lacks) > 0 {
		return append(defaultPackages(), ipvsTests)
	}
	return defaultPackages()
}

// demo is the package whose program is run in place of its tests.
const demo = "demo"

// kernelTests names the tests of a package that need a kernel. The others have the same outcome on
// each, and emulation is slow.
func kernelTests(pkg string) string {
	switch pkg {
	case "nft/ruleset":
		return "^(TestDeleteUnderTraffic|TestRangesCostNoPackets|TestEqualListsAreOneSet|TestChangedRangeIsLinearWork|" +
			"TestLookupsUnderChurn)$"
	case "daemon/proxy", "test/scenario":
		return "^TestKernel"
	case "test/datapath":
		return "^Test(LeastConnections)?Associations$" // others measure a way that nftproxy does not take, or need no kernel
	case "cmd/nftproxy": // chosen by --packages
		return "^TestFlowsAbort$"
	case "daemon/listen":
		return "^Test(Health|Listeners)"
	case "look/explain/live":
		return "^TestAsk$"
	}
	return "."
}

// sameEverywhere are the tests that take long and are about our own code: the first inputs of fuzz
// targets, the kernel's answers that a test makes wrong itself, and three without a kernel.
const sameEverywhere = "^(Fuzz|TestFaults|TestCleanerStaysWithinBudget$|TestStaleAgainstOracle$|TestKernelBugs$)"

// defaultPackages are those with tests that need a kernel, and no API server, and the demo.
func defaultPackages() []string {
	return []string{
		"nft/kernel", "nft/ruleset", "nft/livetrace", "nft/ejecttable", "nft/invalidtable", "conntrack",
		"daemon/affinity", "look/basechain", "look/explain/live", "daemon/listen", "node/hostaddr",
		"node/otherproxy", "look/preflight", "daemon/proxy",
		"test/lib/testnet", "test/lib/netfilter", "test/scenario", demo,
		"test/datapath", // the last: it loads the kernel's SCTP, which answers what other tests send
	}
}

// wantedModules are those that a node has loaded when it uses all that the tests use. A kernel may
// lack some, or have them built in.
func wantedModules() []string {
	return []string{
		"virtio_pci", "virtio_rng", "virtio_console", "virtio_blk", "overlay",
		"veth", "dummy", "tun", "bridge", "vxlan", "vrf", "af_packet",
		"sch_netem", "sch_ingress", "sch_tbf",
		"nf_tables", "nft_chain_nat", "nft_ct", "nft_nat", "nft_masq", "nft_redir", "nft_reject", "nft_reject_ipv4",
		"nft_reject_ipv6",
		"nft_reject_inet", "nft_numgen", "nft_hash", "nft_limit", "nft_log", "nft_objref", "nft_quota", "nft_counter",
		"nft_fib",
		"nft_fib_ipv4", "nft_fib_ipv6", "nft_fib_inet", "nft_set_pipapo", "nft_tproxy", "nft_socket", "nft_compat",
		"nft_flow_offload",
		"nf_flow_table", "nf_flow_table_inet", "nf_conntrack", "nf_conntrack_netlink", "nf_nat", "nf_log_syslog",
		"nf_log_ipv4",
		"nf_log_ipv6", "nfnetlink_log", "nfnetlink_queue", "nft_queue", "xt_NFQUEUE", "xt_CT", "nf_defrag_ipv4",
		"nf_defrag_ipv6", "x_tables", "ip_tables", "ip6_tables", "iptable_nat",
		"ip6table_nat", "iptable_filter", "ip6table_filter", "iptable_mangle", "ip6table_mangle", "iptable_raw",
		"ip6table_raw",
		"xt_MASQUERADE", "xt_nat", "xt_mark", "xt_connmark", "xt_conntrack", "xt_comment", "xt_addrtype", "xt_statistic",
		"xt_multiport", "xt_tcpudp",
		"xt_REDIRECT", "xt_set", "ip_set", "ip_set_hash_ip", "ip_set_hash_ipport", "ip_set_hash_ipportip",
		"ip_set_hash_ipportnet",
		"ip_set_bitmap_port", "xt_recent", "xt_limit", "xt_LOG", "xt_socket", "xt_TPROXY", "xt_physdev", "xt_u32",
		"ipt_REJECT",
		"ip6t_REJECT", "br_netfilter", "ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "ip_vs_wlc", "ip_vs_lc",
		"sctp", "hmac", "md5", // with the signatures of its cookies
	}
}
