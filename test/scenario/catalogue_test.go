package scenario_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"nftproxy/test/scenario"
)

// inScenario says that a scenario's comment names the test.
const inScenario = ""

// kubeProxyTests are the tests of kube-proxy v1.37.2 that say what becomes of
// packets and what it makes of objects. Each is the subject of a scenario,
// which names it in its comment, or of Go tests where there is nothing that a
// packet could show: "package directory: test, test".
func kubeProxyTests() map[string]string {
	return map[string]string{
		"TestOverallNFTablesRules":                            inScenario,
		"TestBadIPs":                                          inScenario,
		"TestLoadBalancerIngressRouteTypeProxy":               inScenario,
		"Test_servicePortChainNameBase":                       inScenario,
		"Test_servicePortEndpointChainNameBase":               inScenario,
		"TestProxier_OnServiceCIDRsChanged":                   inScenario,
		"TestNoEndpointsReject":                               inScenario,
		"TestClusterIPGeneral":                                inScenario,
		"TestLoadBalancer":                                    inScenario,
		"TestNodePorts":                                       inScenario,
		"TestExternalTrafficPolicyLocal":                      inScenario,
		"TestExternalTrafficPolicyCluster":                    inScenario,
		"TestInternalTrafficPolicy":                           inScenario,
		"TestTerminatingEndpointsTrafficPolicyLocal":          inScenario,
		"TestTerminatingEndpointsTrafficPolicyCluster":        inScenario,
		"TestInternalExternalMasquerade":                      inScenario,
		"TestTracePacketV4":                                   inScenario,
		"TestTracePacketV6":                                   inScenario,
		"TestBuildServiceMapAddRemove":                        inScenario,
		"TestBuildServiceMapServiceHeadless":                  inScenario,
		"TestServiceMapUpdateHeadless":                        inScenario,
		"TestBuildServiceMapServiceTypeExternalName":          inScenario,
		"TestUpdateServiceTypeExternalName":                   inScenario,
		"TestBuildServiceMapServiceUpdate":                    inScenario,
		"TestUpdateEndpointsMap":                              inScenario,
		"TestEndpointsMapFromESC":                             inScenario,
		"TestEndpointInfoByServicePort":                       inScenario,
		"TestHealthCheckNodePortWhenTerminating":              inScenario,
		"TestCategorizeEndpoints":                             inScenario,
		"TestServiceToServiceMap":                             inScenario,
		"TestCleanStaleEntries":                               inScenario,
		"TestServiceWithoutEndpoints":                         inScenario,
		"TestSyncProxyRulesTruncatesNoEndpointServiceComment": inScenario,
		// The same services by IPv6.
		"TestOverallNFTablesRulesIPv6": "nft/ruleset: TestGolden, TestOracle",
		"TestEndpointDNATRules":        "nft/ruleset: TestGolden, TestOracle",
		// How much is written for which change, and nothing for none.
		"TestSyncProxyRulesRepeated": "nft/ruleset: TestOneEndpoint",
		// What is there at the start is adopted.
		"TestSyncProxyRulesStartup": "nft: TestAdopt",
		// A gauge; endpoints-elsewhere has what becomes of the packets.
		"TestNoEndpointsMetric": "daemon/metrics: TestNoLocalEndpoints",
	}
}

// otherKubeProxyTests are those of what is around that: objects and their
// caches, health servers, when to sync, the node, connection tracking. Left out
// are kube-proxy's own tools for tests, several handlers of one event, its logging, the other modes, and what
// nftproxy does not have yet: a configuration file, conntrack's sysctls, and
// the latency that is told from the slices' annotations.
func otherKubeProxyTests() map[string]string {
	return map[string]string{
		// Slices and services, merged and remembered.
		"TestGetLocalEndpointIPs":                           "daemon/listen: TestHealthWanted",
		"TestEndpointSliceUpdate":                           "watch: TestSliceChanges",
		"TestCheckoutChanges":                               "watch: TestSliceChanges, TestEventOrder",
		"TestEsDataChanged":                                 "watch: TestUnrelatedKeepItsPointer, TestKeptIsSmall",
		"TestEndpointSliceCacheClearedCorrectly":            "watch: TestEventOrder",
		"TestSameServiceEndpointSliceCacheClearedCorrectly": "watch: TestEventOrder",
		"TestServiceCacheLeaks":                             "watch: TestEventOrder",
		"TestShouldSkipService":                             "watch: TestGolden",
		"TestGetClusterIPByFamily":                          "watch: TestGolden",
		"TestMapIPsByIPFamily":                              "watch: TestGolden",
		"TestMapCIDRsByIPFamily":                            "model/service: TestNewSources",
		"TestIsZeroCIDR":                                    "model/service: TestNewSources",
		"TestIPPart":                                        "watch: TestParseAddr",
		// What is left behind.
		"TestCleanupLeftoversDeletesExistingTables": "test/e2e: TestCleanup",
		"TestCleanupLeftoversNotFoundIgnored":       "test/e2e: TestCleanup",
		// The watches.
		"TestNewServicesSourceApi_UpdatesAndMultipleServices":   "watch: TestKubernetes",
		"TestNewEndpointsSourceApi_UpdatesAndMultipleEndpoints": "watch: TestKubernetes",
		"TestInitialSync":                                            "watch: TestNothingBeforeSync",
		"TestNewServiceAddedAndNotified":                             "watch: TestKubernetes",
		"TestServiceAddedRemovedSetAndNotified":                      "watch: TestKubernetes",
		"TestNewServiceCIDRsMultipleHandlersAddRemoveSetAndNotified": "watch: TestServiceCIDRs",
		"TestNewNodesMultipleHandlersAddRemoveSetAndNotified":        "watch: TestNoNode",
		"TestNewEndpointsMultipleHandlersAddRemoveSetAndNotified":    "watch: TestKubernetes",
		"TestNewNodeTopologyConfig":                                  "watch: TestGolden",
		// The node, its addresses and its pods.
		"TestNewNodeManager":                      "watch: TestNoNode, TestAwaitPodCIDRs, TestPodCIDRsNeverCome",
		"TestNodeManagerOnNodeChange":             "watch: TestGolden",
		"TestNodeManagerOnNodeDelete":             "test/e2e: TestHealth",
		"TestNodeManagerNode":                     "watch: TestGolden",
		"TestGetNodeIPs":                          "model/service: TestNodePortAddresses",
		"TestNoOpLocalDetector":                   "nft/ruleset: TestGolden, TestOracle",
		"TestDetectLocalByCIDR":                   "nft/ruleset: TestGolden, TestOracle",
		"TestDetectLocalNFTByBridgeInterface":     "nft/ruleset: TestGolden, TestOracle",
		"TestDetectLocalNFTByInterfaceNamePrefix": "nft/ruleset: TestGolden, TestOracle",
		// When to sync.
		"Test_BoundedFrequencyRunner": "daemon/proxy: TestFirstChangeAtOnce, TestBurst",
		"Test_BoundedFrequencyRunnerRetry": "daemon/proxy: TestRetryWithoutChange, " +
			"TestChangeInsteadOfRetry",
		"Test_BoundedFrequencyRunnerRetryShorterThanMinInterval":               "daemon/proxy: TestRetryWithoutChange",
		"TestBoundedFrequencyRunner_Run_RunsAgainAfterMinInterval_RealClock":   "daemon/proxy: TestBurst",
		"TestBoundedFrequencyRunner_Run_DoesNotRunBeforeMinInterval_RealClock": "daemon/proxy: TestBurst",
		"Test_BoundedFrequencyRunnerRetry_RealClock":                           "daemon/proxy: TestRetryWithoutChange",
		// Health.
		"TestServer": "daemon/listen: TestHealthHTTP, TestHealthKeptConnection, TestHealthAnswer",
		"TestServerWithSelectiveListeningAddress": "daemon/listen: TestHealthNodeAddresses",
		"TestHealthzServer":                       "daemon/health: TestLife, TestBody",
		"TestLivezServer":                         "daemon/health: TestLife, TestBody",
		// Connection tracking; a million connections.
		"TestPerformanceCleanStaleEntries": "conntrack: BenchmarkRemove",
		"TestConntracker_DeleteEntries":    "conntrack: TestTableDelete",
		"TestFlowFilter":                   "conntrack: TestDeleteRequestNamesFlow",
	}
}

// TestCatalogue finds tests of kube-proxy that nothing here stands for, and
// names in the scenarios' comments that are no tests of it.
func TestCatalogue(t *testing.T) {
	known := kubeProxyTests()
	named := map[string]bool{}
	eachScenario(t, func(t *testing.T, s *scenario.Scenario) {
		for _, test := range kubeProxyNames(s.About) {
			named[test] = true
			if _, found := known[test]; !found {
				t.Errorf("kube-proxy has no %s that the catalogue knows", test)
			}
		}
	})
	for test, instead := range otherKubeProxyTests() {
		if _, twice := known[test]; twice {
			t.Errorf("the catalogue has %s twice", test)
		}
		known[test] = instead
	}
	for _, test := range slices.Sorted(maps.Keys(known)) {
		if known[test] == inScenario {
			if !named[test] {
				t.Errorf("no scenario says that it is about kube-proxy's %s", test)
			}
			continue
		}
		directory, names, _ := strings.Cut(known[test], ": ")
		for instead := range strings.SplitSeq(names, ", ") {
			if !hasTest(t, directory, instead) {
				t.Errorf("package %s has no %s, which was to stand for kube-proxy's %s", directory, instead, test)
			}
		}
	}
}

// kubeProxyNames are the tests named in "(kube-proxy: TestX, about it)".
func kubeProxyNames(about string) []string {
	var names []string
	for _, remark := range regexp.MustCompile(`\(kube-proxy: [^)]*\)`).FindAllString(about, -1) {
		names = append(names, regexp.MustCompile(`\bTest\w+`).FindAllString(remark, -1)...)
	}
	return names
}

// hasTest says whether a package of the module has a test or benchmark of the
// name.
func hasTest(t *testing.T, directory, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", directory, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(source), "\nfunc "+name+"(")
	})
}
