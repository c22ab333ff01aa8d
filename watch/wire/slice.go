package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sliceDecoder decodes EndpointSlices into one object, again and again. A list of 10,000 slices would otherwise make
// garbage of several times its size, which the process holds while it starts.
type sliceDecoder struct {
	keep  []string
	slice discoveryv1.EndpointSlice
	// endpoints has what the slice's endpoints point to, by their index.
	endpoints []*endpointParts
}

// endpointParts has what an endpoint points to.
type endpointParts struct {
	addresses                   []string
	node                        string
	ready, serving, terminating bool
	hints                       discoveryv1.EndpointHints
}

// decode decodes an EndpointSlice (k8s.io/api/discovery/v1/generated.proto). The next call uses the same memory.
func (d *sliceDecoder) decode(message []byte) (*discoveryv1.EndpointSlice, error) {
	s := &d.slice
	clear(s.Labels)
	clear(s.Annotations)
	*s = discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Labels: s.Labels, Annotations: s.Annotations}, Endpoints: s.Endpoints[:0],
		Ports: s.Ports[:0],
	}
	err := fields(message, func(number protowire.Number, v value) error {
		switch number {
		case 1:
			return metadata(v.bytes, d.keep, &s.ObjectMeta)
		case 2:
			return d.addEndpoint(v.bytes)
		case 3:
			var port discoveryv1.EndpointPort
			if err := port.Unmarshal(v.bytes); err != nil {
				return err
			}
			s.Ports = append(s.Ports, port)
		case 4:
			s.AddressType = discoveryv1.AddressType(v.bytes)
		}
		return nil
	})
	return s, err
}

// addEndpoint decodes an Endpoint.
func (d *sliceDecoder) addEndpoint(message []byte) error {
	i := len(d.slice.Endpoints)
	if i == len(d.endpoints) {
		d.endpoints = append(d.endpoints, &endpointParts{})
	}
	parts := d.endpoints[i]
	*parts = endpointParts{addresses: parts.addresses[:0]}
	var e discoveryv1.Endpoint
	err := fields(message, func(number protowire.Number, v value) error {
		switch number {
		case 1:
			parts.addresses = append(parts.addresses, v.text())
		case 2:
			return parts.conditions(v.bytes, &e.Conditions)
		case 6:
			parts.node = v.text()
			e.NodeName = &parts.node
		case 8:
			e.Hints = &parts.hints
			return parts.hints.Unmarshal(v.bytes)
		}
		return nil
	})
	e.Addresses = parts.addresses
	d.slice.Endpoints = append(d.slice.Endpoints, e)
	return err
}

// conditions decodes EndpointConditions.
func (p *endpointParts) conditions(message []byte, c *discoveryv1.EndpointConditions) error {
	return fields(message, func(number protowire.Number, v value) error {
		switch number {
		case 1:
			p.ready, c.Ready = v.bool(), &p.ready
		case 2:
			p.serving, c.Serving = v.bool(), &p.serving
		case 3:
			p.terminating, c.Terminating = v.bool(), &p.terminating
		}
		return nil
	})
}
