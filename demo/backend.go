package main

import (
	"fmt"
	"net/netip"

	"nftproxy/test/lib/testnet"
)

// backend is a pod behind the service default/web.
type backend struct{ pod *testnet.Pod }

func (b *backend) name() string { return b.pod.Name }

func (b *backend) endpoint(terminating bool) endpoint {
	return endpoint{Name: b.name(), Addrs: b.pod.Addrs, Terminating: terminating}
}

// addBackend makes the next pod. It serves, but is in no manifest yet. Its addresses end
// in its number, and no number is used twice.
func (w *world) addBackend() (*backend, error) {
	w.made++
	name := fmt.Sprintf("web-%d", w.made)
	const first = 10
	v4, v6 := w.net.PodCIDRs[0].Addr().As4(), w.net.PodCIDRs[1].Addr().As16()
	v4[3], v6[15] = byte(first+w.made), byte(first+w.made)
	pod, err := w.net.AddPod(name, netip.AddrFrom4(v4), netip.AddrFrom16(v6))
	if err != nil {
		return nil, err
	}
	for _, addr := range pod.Addrs {
		for _, proto := range []string{testnet.TCP, testnet.UDP} {
			if _, err := pod.NS.Serve(proto, netip.AddrPortFrom(addr, podPort), name); err != nil {
				return nil, err
			}
		}
	}
	return &backend{pod}, nil
}

// addBackends makes n pods and appends them to the ready ones.
func (w *world) addBackends(n int) error {
	for range n {
		b, err := w.addBackend()
		if err != nil {
			return err
		}
		w.ready = append(w.ready, b)
	}
	return nil
}

func endpointsOf(ready []*backend) []endpoint {
	var list []endpoint
	for _, b := range ready {
		list = append(list, b.endpoint(false))
	}
	return list
}

func names(backends []*backend) []string {
	var list []string
	for _, b := range backends {
		list = append(list, b.name())
	}
	return list
}
