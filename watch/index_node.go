package watch

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"nftproxy/model/service"
)

// nodeState is what the index knows of this node's Node object, apart from its facts.
type nodeState struct {
	// object is nil where there is no Node.
	object *nodeObject
	// expected says that a Node with an address is to come: the source is an API
	// server.
	expected bool
	// foreign says that none of the Node's addresses is on an interface of this host.
	foreign bool
	// strange says that a pod of this node is outside of its podCIDRs, by which pods are recognized.
	strange bool
	// seen is closed when the Node has come, podCIDRs when it has had podCIDRs.
	seen, podCIDRs chan struct{}
}

func newNodeState() nodeState {
	return nodeState{seen: make(chan struct{}), podCIDRs: make(chan struct{})}
}

// expectNode says that the Node is to come.
func (ix *index) expectNode() {
	ix.node.expected = true
	node := *ix.builder.Node()
	node.AddressPending = len(node.Addresses) == 0
	ix.builder.SetNode(node)
}

func (ix *index) knownNodes() []*nodeObject {
	if ix.node.object == nil {
		return nil
	}
	return []*nodeObject{ix.node.object}
}

// setNode takes this node's object. It ignores other Nodes.
func (ix *index) setNode(n *nodeObject) {
	last := ix.builder.Node()
	if n.facts.Name != last.Name {
		return
	}
	reportNew(ix, ix.node.object, n)
	ix.node.object = n
	node := n.facts
	node.HostAddresses, node.SharedAddresses, node.Settings = last.HostAddresses, last.SharedAddresses, last.Settings
	node.Networks, node.APIServers = last.Networks, last.APIServers
	node.AddressPending = ix.node.expected && !n.addressed
	ix.builder.SetNode(node)
	ix.kubeletPort, ix.unprotected = n.kubeletPort, true
	closeOnce(ix.node.seen)
	if len(node.PodCIDRs) > 0 {
		closeOnce(ix.node.podCIDRs)
	}
	ix.doubtNode()
	ix.doubtPods(maps.Values(ix.slices))
}

// doubtNode reports a Node none of whose addresses is on an interface here: it may be another node's. It does so once,
// until one is.
func (ix *index) doubtNode() {
	node := ix.builder.Node()
	foreign := ix.node.object != nil && len(node.Addresses) > 0 && len(node.HostAddresses) > 0 &&
		!slices.ContainsFunc(node.Addresses, func(a netip.Addr) bool { return slices.Contains(node.HostAddresses, a) })
	if foreign && !ix.node.foreign {
		ix.reportNode("status.addresses", fmt.Errorf("%w: %v", ErrForeignNode, node.Addresses))
	}
	ix.node.foreign = foreign
}

// doubtPods reports an endpoint of this node that is no process of the node itself and outside of the podCIDRs, where
// these tell what is a pod. It does so once.
func (ix *index) doubtPods(list iter.Seq[*sliceObject]) {
	node := ix.builder.Node()
	if !ix.options.AwaitPodCIDRs || ix.node.strange || len(node.PodCIDRs) == 0 || len(node.HostAddresses) == 0 {
		return
	}
	for s := range list {
		for e := range s.endpoints.All() {
			a := e.Addr.Addr()
			if e.Node != node.Name || slices.Contains(node.HostAddresses, a) || slices.Contains(node.Addresses, a) ||
				slices.ContainsFunc(node.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
				continue
			}
			ix.node.strange = true
			ix.reportNode("spec.podCIDRs", fmt.Errorf("%w: %v, as %v", ErrStrangePods, node.PodCIDRs, a))
			return
		}
	}
}

// SetSettings puts other settings in force, with the next snapshot. It may be called at
// any time, before and during a run, from any goroutine.
func (w *Watcher) SetSettings(s *service.Settings) {
	w.change(func(ix *index) {
		node := *ix.builder.Node()
		node.Settings = s
		ix.builder.SetNode(node)
		ix.unprotected = true
	})
}

// deleteNode reports that the Node is gone and keeps its facts: the node's interfaces
// still have the addresses.
func (ix *index) deleteNode(name service.Name) {
	if n := ix.node.object; n != nil && n.key == name {
		ix.node.object = nil
		ix.missNode()
	}
}

// missNode reports that there is no Node, or none with an address, and which node
// ports are open in that case.
func (ix *index) missNode() {
	pending := ix.builder.Node().AddressPending
	switch {
	case ix.node.object == nil && pending:
		ix.reportNode("", fmt.Errorf("%w; %s", ErrNoNode, closedNodePorts))
	case ix.node.object == nil:
		ix.reportNode("", ErrNoNode)
	case pending:
		ix.reportNode("status.addresses", fmt.Errorf("%w; %s", ErrNoNodeAddress, closedNodePorts))
	}
}

// closedNodePorts says which node ports are open without an address of the Node.
const closedNodePorts = "until it has one, node ports are open on no address, or on those of --nodeport-addresses"

// missPodCIDRs reports that the Node has no podCIDRs, and the consequence.
func (ix *index) missPodCIDRs(consequence string) {
	ix.reportNode("spec.podCIDRs", fmt.Errorf("%w: %s", ErrNoPodCIDRs, consequence))
}

// reportNode reports a problem of this node.
func (ix *index) reportNode(field string, err error) {
	ix.problems = append(ix.problems, Problem{Object: NodeObject(ix.builder.Node().Name), Field: field, Err: err})
}
