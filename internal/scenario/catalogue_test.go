package scenario_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"nftproxy/internal/scenario"
)

// kubeProxyTests are the tests of kube-proxy v1.36.3 that say what becomes of
// packets and what it makes of objects. Each is the subject of a scenario,
// which names it in its comment, or of a Go test where there is nothing that a
// packet could show: "package directory: test".
func kubeProxyTests() map[string]string {
	const inScenario = ""
	return map[string]string{
		"TestOverallNFTablesRules":                     inScenario,
		"TestBadIPs":                                   inScenario,
		"TestLoadBalancerIngressRouteTypeProxy":        inScenario,
		"Test_servicePortChainNameBase":                inScenario,
		"Test_servicePortEndpointChainNameBase":        inScenario,
		"TestProxier_OnServiceCIDRsChanged":            inScenario,
		"TestNoEndpointsReject":                        inScenario,
		"TestClusterIPGeneral":                         inScenario,
		"TestLoadBalancer":                             inScenario,
		"TestNodePorts":                                inScenario,
		"TestExternalTrafficPolicyLocal":               inScenario,
		"TestExternalTrafficPolicyCluster":             inScenario,
		"TestInternalTrafficPolicy":                    inScenario,
		"TestTerminatingEndpointsTrafficPolicyLocal":   inScenario,
		"TestTerminatingEndpointsTrafficPolicyCluster": inScenario,
		"TestInternalExternalMasquerade":               inScenario,
		"TestTracePacketV4":                            inScenario,
		"TestTracePacketV6":                            inScenario,
		"TestBuildServiceMapAddRemove":                 inScenario,
		"TestBuildServiceMapServiceHeadless":           inScenario,
		"TestServiceMapUpdateHeadless":                 inScenario,
		"TestBuildServiceMapServiceTypeExternalName":   inScenario,
		"TestUpdateServiceTypeExternalName":            inScenario,
		"TestBuildServiceMapServiceUpdate":             inScenario,
		"TestUpdateEndpointsMap":                       inScenario,
		"TestEndpointsMapFromESC":                      inScenario,
		"TestEndpointInfoByServicePort":                inScenario,
		"TestHealthCheckNodePortWhenTerminating":       inScenario,
		"TestNoEndpointsMetric":                        inScenario,
		"TestCategorizeEndpoints":                      inScenario,
		"TestServiceToServiceMap":                      inScenario,
		"TestCleanStaleEntries":                        inScenario,
		"TestServiceWithoutEndpoints":                  inScenario,
		// How much is written for which change, and nothing for none.
		"TestSyncProxyRulesRepeated": "nft/ruleset: TestOneEndpoint",
		// What is there at the start is adopted.
		"TestSyncProxyRulesStartup": "nft: TestAdopt",
		// A million connections.
		"TestPerformanceCleanStaleEntries": "conntrack: BenchmarkPass",
		// What --nodeport-addresses means.
		"TestGetNodeIPs": "internal/service: TestNodePortAddresses",
	}
}

// TestCatalogue finds tests of kube-proxy that nothing here stands for, and
// names in the scenarios' comments that are no tests of it.
func TestCatalogue(t *testing.T) {
	known := kubeProxyTests()
	named := map[string][]string{}
	eachScenario(t, func(t *testing.T, s *scenario.Scenario) {
		for _, test := range kubeProxyNames(s.About) {
			named[test] = append(named[test], s.Name)
			if _, found := known[test]; !found {
				t.Errorf("kube-proxy has no %s that the catalogue knows", test)
			}
		}
	})
	for _, test := range slices.Sorted(maps.Keys(known)) {
		switch directory, instead, found := strings.Cut(known[test], ": "); {
		case !found && len(named[test]) == 0:
			t.Errorf("no scenario says that it is about kube-proxy's %s", test)
		case found && !hasTest(t, directory, instead):
			t.Errorf("package %s has no %s, which was to stand for kube-proxy's %s", directory, instead, test)
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
