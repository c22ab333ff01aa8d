package main

import (
	"slices"
	"strings"
)

// sig is the label of the tests that run.
const sig = "sig-network"

// policyFeature is the feature of tests that want NetworkPolicies to be enforced.
const policyFeature = "NetworkPolicy"

// loadBalancerFeature is the feature of tests that want addresses for load balancers.
const loadBalancerFeature = "LoadBalancer"

// suiteAdditions are what the cluster has beside the service proxy.
type suiteAdditions struct {
	// policies says that it enforces NetworkPolicies, and announcer that a program gives load balancers their addresses
	// and announces each of them from one node.
	policies, announcer bool
}

// omission is a kind of test that does not run here.
type omission struct {
	// feature is the NAME of a label Feature:NAME; name is a part of the test's name, a
	// regular expression without special signs. One of the two is empty.
	feature, name string
	// because is the reason, for people.
	because string
}

// omissions are the tests of sig-network that need what no cluster on one computer
// has, or that try another part than the service proxy. All others run, those that
// are slow, serial or disruptive too: a test that still finds something missing skips
// itself, and the report has its words.
func omissions(has suiteAdditions) []omission {
	all := []omission{
		{feature: loadBalancerFeature, because: "the cluster has no program that makes load balancers; up --announcer " +
			"starts one"},
		{feature: "Networking-IPv4", because: "the pods reach no internet"},
		{feature: "Networking-IPv6", because: "the pods reach no internet"},
		{feature: "Networking-DNS", because: "the pods reach no internet"},
		{name: "should forward PTR records lookup to upstream nameserver",
			because: "it asks the internet for the name of 8.8.8.8"},
		{feature: policyFeature,
			because: "the cluster has no engine that enforces NetworkPolicies; up --policies starts one"},
		{feature: "SCTPConnectivity", because: "many kernels have no module sctp, such as those of CI"},
		{feature: "KubeProxyNFAcct", because: "it reads counters that kube-proxy's iptables mode makes"},
		{feature: "Networking-Performance", because: "it measures throughput, and no figure of it can fail"},
		{feature: "PerformanceDNS", because: "it measures the name service with 10,000 Services"},
		{feature: "OffByDefault", because: "a feature gate of the cluster is off"},
	}
	if has.policies {
		all = slices.DeleteFunc(all, func(o omission) bool { return o.feature == policyFeature })
	}
	if has.announcer {
		all = slices.DeleteFunc(all, func(o omission) bool { return o.feature == loadBalancerFeature })
		const oneNode = "it wants several nodes to have the address, or several endpoints on one node: in layer 2 one " +
			"node has it"
		all = append(all,
			omission{name: "should handle load balancer cleanup finalizer for service", because: "the finalizer is that of " +
				"Kubernetes' controller for clouds; an announcer sets none"},
			omission{name: "should target all nodes with endpoints", because: oneNode},
			omission{name: "should only target nodes with endpoints", because: "it asks a health check node port at both " +
				"addresses of a node, and its Service has one family: kube-proxy, too, answers in that family only"},
			omission{name: "should be able to switch session affinity for LoadBalancer service with Local traffic policy",
				because: oneNode},
		)
	}
	return all
}

// labelFilter selects tests by their labels, in the language of ginkgo --label-filter.
func labelFilter(has suiteAdditions) string {
	var features []string
	for _, o := range omissions(has) {
		if o.feature != "" {
			features = append(features, o.feature)
		}
	}
	return sig + " && !(Feature: containsAny {" + strings.Join(features, ", ") + "})"
}

// skippedNames are parts of the names of tests that do not run.
func skippedNames(has suiteAdditions) []string {
	var names []string
	for _, o := range omissions(has) {
		if o.name != "" {
			names = append(names, o.name)
		}
	}
	return names
}

// omitted is the reason why a test does not run; "" if it does.
func omitted(name string, labels []string, has suiteAdditions) string {
	for _, o := range omissions(has) {
		if o.feature != "" && slices.Contains(labels, "Feature:"+o.feature) {
			return "Feature:" + o.feature + ": " + o.because
		}
		if o.name != "" && strings.Contains(name, o.name) {
			return o.name + ": " + o.because
		}
	}
	return ""
}
