package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Key names an object.
type Key struct{ Kind, Namespace, Name string }

func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + " " + k.Name
	}
	return k.Kind + " " + k.Namespace + "/" + k.Name
}

// Object is one object as the file has it.
type Object struct {
	Key
	YAML string
}

// Fixture is the world that every scenario begins with: Node test-node and one
// ServiceCIDR of each family.
func Fixture() string { return fixture }

const fixture = `
apiVersion: v1
kind: Node
metadata:
  name: test-node
  labels: {topology.kubernetes.io/zone: zone-a}
spec:
  podCIDR: 10.180.0.0/24
  podCIDRs: ["10.180.0.0/24", "fd00:10:180::/64"]
status:
  addresses:
    - {type: InternalIP, address: 192.168.0.2}
    - {type: InternalIP, address: "2001:db8::1"}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: ["172.30.0.0/16", "fd00:172:30::/112"]}
`

// NodeName is the name of the Node that the proxy runs on.
const NodeName = "test-node"

// nodeAddresses are on the node's interfaces from the start.
func nodeAddresses() []netip.Addr {
	var list []netip.Addr
	for _, a := range []string{"192.168.0.2", "192.168.1.2", "192.168.99.11", "2001:db8::1", "2001:db8:1::2"} {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

// state is the cluster and the node after a step.
type state struct {
	objects   map[Key]Object
	changed   []Key
	deleted   []Key
	addresses []netip.Addr
	networks  []netip.Prefix
	closed    []netip.AddrPort
}

// next returns the state at the start of the next step.
func (s *state) next() *state {
	return &state{objects: maps.Clone(s.objects), addresses: s.addresses, networks: s.networks,
		closed: slices.Clone(s.closed)}
}

func (s *state) apply(text string) error {
	for document := range strings.SplitSeq("\n"+text, "\n---") {
		if len(lines(document)) == 0 {
			continue
		}
		var head struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			return err
		}
		key := Key{head.Kind, head.Metadata.Namespace, head.Metadata.Name}
		if key.Name == "" || key.Kind == "" || (key.Namespace == "") != (key.Kind == "Node" || key.Kind == "ServiceCIDR") {
			return fmt.Errorf("object %s: want kind, metadata.name and, unless it is a Node or ServiceCIDR, metadata.namespace",
				key)
		}
		s.objects[key] = Object{key, strings.TrimSpace(document) + "\n"}
		s.changed = append(s.changed, key)
	}
	return nil
}

func (s *state) delete(list []string) error {
	for _, line := range list {
		kind, name, _ := strings.Cut(line, " ")
		key := Key{Kind: kind, Name: name}
		if namespace, name, found := strings.Cut(name, "/"); found {
			key.Namespace, key.Name = namespace, name
		}
		if _, found := s.objects[key]; !found {
			return fmt.Errorf("no %s to delete", key)
		}
		delete(s.objects, key)
		s.deleted = append(s.deleted, key)
	}
	return nil
}

// fill copies the state into the step.
func (s *state) fill(step *Step) {
	step.Objects, step.Changed = nil, nil
	for _, key := range slices.SortedFunc(maps.Keys(s.objects), compareKeys) {
		step.Objects = append(step.Objects, s.objects[key])
		if slices.Contains(s.changed, key) {
			step.Changed = append(step.Changed, s.objects[key])
		}
	}
	step.Deleted, step.Addresses, step.Networks, step.Closed = s.deleted, s.addresses, s.networks, s.closed
}

func compareKeys(a, b Key) int {
	return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name))
}
