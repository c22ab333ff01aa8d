package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// TestDepartedConnections: an endpoint leaves four Services while it goes on to serve. A client's open connection ends
// with a reset where the Service asks for a cut, at once or not before the time has passed; it goes on where the
// Service asks for nothing, and where a bad value is an event.
func TestDepartedConnections(t *testing.T) {
	n := newNode(t)
	client := n.addClient()
	leaving, staying := n.addServer("leaving"), n.addServer("staying")
	const wait = 2 * time.Second
	options := map[string]string{"plain": "", "cut": "cut", "later": "cut-after=" + wait.String(), "bad": "cut-after=2h"}
	open := map[string]*conversation{}
	made := map[string]*corev1.Service{}
	for name, option := range options {
		s := service(name, "")
		if option != "" {
			s.Annotations = map[string]string{"nftproxy.io/departed-connections": option}
		}
		made[name] = n.create(s)
		for i, a := range leaving.Addrs {
			n.publish(slice(fmt.Sprintf("%s-%d", name, i), made[name], a))
		}
	}
	p := n.startProxy()
	for name, s := range made {
		to := address(s, testnet.TCP, ip.V4)
		p.until("the pod serves", func() error { return n.reaches(client, testnet.TCP, to, "leaving") })
		open[name] = n.converse(client, to.String())
	}
	left := time.Now()
	for name, s := range made {
		for i, a := range staying.Addrs {
			_, err := n.plane.client.DiscoveryV1().EndpointSlices(n.namespace).Update(n.ctx, slice(fmt.Sprintf("%s-%d", name, i),
				s, a), metav1.UpdateOptions{})
			n.must(err)
		}
	}
	for _, name := range []string{"cut", "later"} {
		n.must(open[name].conn.SetDeadline(time.Now().Add(2 * patience)))
		p.until(name+": the connection ends", func() error {
			if err := open[name].goesOn(); !errors.Is(err, syscall.ECONNRESET) {
				return fmt.Errorf("got %v, want a reset", err)
			}
			return nil
		})
		if took := time.Since(left); name == "later" && took < wait {
			t.Errorf("the connection ended after %v, before %v", took, wait)
		}
	}
	for _, name := range []string{"plain", "bad"} {
		if err := open[name].goesOn(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if e := n.awaitEvent("Service", "bad", "Invalid"); !strings.Contains(e.Message, "cut-after=2h") ||
		!strings.Contains(e.Message, "from 1s to 1h") {
		t.Errorf("event %q names neither the value nor what is allowed", e.Message)
	}
}
