package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"nftproxy/model/ip"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// tries is how often each kind of change is made.
const tries = 20

// soonEnough bounds the fastest of many tries. A change takes milliseconds; other work on
// the machine may delay some tries, but not all.
const soonEnough = time.Second

// TestAtOnce makes changes without a Service or EndpointSlice: an address of the node, its
// zone, a ServiceCIDR. It makes one at a time, so that no other change can cause the
// sync. Each has to get into the kernel by itself. The log has the time from before the
// request until then.
func TestAtOnce(t *testing.T) {
	a := newAtOnce(t)
	t.Run("address of the node", a.addresses)
	t.Run("zone of the node", a.zones)
	t.Run("ServiceCIDR", a.serviceCIDRs)
	a.proxy.stop()
}

// atOnce is a node with a client and two pods, each for a zone.
type atOnce struct {
	*node
	proxy   *process
	monitor *netfilter.Monitor
	client  *testnet.Namespace
	web     *corev1.Service
}

func newAtOnce(t *testing.T) *atOnce {
	t.Helper()
	a := &atOnce{node: newNode(t)}
	a.client = a.addClient()
	spec := service("web", "")
	spec.Spec.Type = corev1.ServiceTypeNodePort
	a.web = a.create(spec)
	pods := []*testnet.Pod{a.addServer("a"), a.addServer("b")}
	for i := range pods[0].Addrs {
		s := slice(fmt.Sprintf("web-%d", i), a.web, pods[0].Addrs[i], pods[1].Addrs[i])
		for j, zone := range []string{"a", "b"} {
			s.Endpoints[j].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
		a.publish(s)
	}
	a.must(a.setZone("a"))
	a.proxy = a.startProxy("--nodeport-addresses=192.0.2.0/24,2001:db8:7::/64")
	a.proxy.until("the pod of the zone serves", func() error { return a.serves("a") })
	a.monitor = listenIn(t, a.Node)
	return a
}

func (a *atOnce) setZone(zone string) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{"%s":"%s"}}}`, corev1.LabelTopologyZone, zone)
	_, err := a.plane.client.CoreV1().Nodes().Patch(a.ctx, a.name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	return err
}

// serves returns an error unless the pod, and no other, gets the service's connections.
func (a *atOnce) serves(pod string) error {
	return everywhere(func(protocol string, family ip.Family) error {
		return a.reaches(a.client, protocol, address(a.web, protocol, family), pod)
	})
}

// measure makes changes. After each it waits until the addresses of the change are in the
// kernel, and then checks real packets.
func (a *atOnce) measure(t *testing.T, change func(i int) (appear []netip.Addr, apply, check func() error)) {
	t.Helper()
	var took []time.Duration
	for i := range tries {
		appear, apply, check := change(i)
		arrived := a.monitor.Expect(appear...)
		start := time.Now()
		if err := apply(); err != nil {
			t.Fatal(err)
		}
		select {
		case at := <-arrived:
			took = append(took, at.Sub(start))
		case <-a.proxy.Exited():
			t.Fatalf("the proxy ended: %v", a.proxy.Err())
		case <-time.After(patience):
			t.Fatalf("change %d: %v not in the kernel within %v", i+1, appear, patience)
		}
		if err := check(); err != nil {
			t.Fatalf("change %d: %v", i+1, err)
		}
	}
	slices.Sort(took)
	t.Logf("%d changes: from %v to %v, median %v", len(took), took[0], took[len(took)-1], took[len(took)/2])
	if took[0] > soonEnough {
		t.Errorf("not one of %d changes was in the kernel within %v", len(took), soonEnough)
	}
}

func (a *atOnce) addresses(t *testing.T) {
	a.measure(t, func(i int) ([]netip.Addr, func() error, func() error) {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
		if i%2 == 1 {
			addr = netip.MustParseAddr(fmt.Sprintf("2001:db8:7::%x", i+1))
		}
		to := netip.AddrPortFrom(addr, nodePort(a.web, testnet.TCP))
		return []netip.Addr{addr},
			func() error { return a.Node.AddAddr("lo", netip.PrefixFrom(addr, addr.BitLen())) },
			func() error { return a.reaches(a.client, testnet.TCP, to, "a") }
	})
}

func (a *atOnce) zones(t *testing.T) {
	a.measure(t, func(i int) ([]netip.Addr, func() error, func() error) {
		zone := []string{"b", "a"}[i%2]
		return a.Pod(zone).Addrs,
			func() error { return a.setZone(zone) },
			func() error { return a.serves(zone) }
	})
}

func (a *atOnce) serviceCIDRs(t *testing.T) {
	sniffer, err := a.SniffUplink(netip.MustParsePrefix("198.18.0.0/15"))
	if err != nil {
		t.Fatal(err)
	}
	cidrs := a.plane.client.NetworkingV1().ServiceCIDRs()
	created := map[string]bool{}
	t.Cleanup(func() { a.deleteServiceCIDRs(t, created) })
	seen, port := 0, uint16(1000) // no two packets are of one flow
	a.measure(t, func(i int) ([]netip.Addr, func() error, func() error) {
		addr := netip.AddrFrom4([4]byte{198, 18, byte(i), 64})
		object := &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", a.namespace, i)},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{netip.PrefixFrom(addr, 27).String()}},
		}
		// leaves returns an error unless so many packets to the range leave the node.
		leaves := func(want int) error {
			port++
			from := netip.AddrPortFrom(a.Pod("client").Addrs.V4(), port)
			if err := a.client.SendSCTPInit(from, netip.AddrPortFrom(addr.Next(), 80)); err != nil {
				return err
			}
			packets, err := sniffer.Packets()
			if got := len(packets) - seen; err == nil && got != want {
				err = fmt.Errorf("%d packets to %v left the node, want %d", got, object.Spec.CIDRs, want)
			}
			seen = len(packets)
			return err
		}
		create := func() error {
			_, err := cidrs.Create(a.ctx, object, metav1.CreateOptions{})
			created[object.Name] = err == nil
			return err
		}
		if err := leaves(1); err != nil {
			t.Fatalf("before change %d: %v", i+1, err)
		}
		return []netip.Addr{addr}, create, func() error { return leaves(0) }
	})
}

// deleteServiceCIDRs returns when the ServiceCIDRs are gone: a controller removes
// their finalizers first, and the next run of the test uses the same ranges.
func (a *atOnce) deleteServiceCIDRs(t *testing.T, left map[string]bool) {
	client := a.plane.client.NetworkingV1()
	for name := range left {
		if err := client.ServiceCIDRs().Delete(a.ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(a.ctx, patience)
	defer cancel()
	list := cache.NewListWatchFromClient(client.RESTClient(), "servicecidrs", "", fields.Everything())
	_, err := watchtools.UntilWithSync(ctx, list, &networkingv1.ServiceCIDR{},
		func(store cache.Store) (bool, error) {
			maps.DeleteFunc(left, func(name string, _ bool) bool { return !slices.Contains(store.ListKeys(), name) })
			return len(left) == 0, nil
		},
		func(e watch.Event) (bool, error) {
			if e.Type == watch.Deleted {
				delete(left, e.Object.(*networkingv1.ServiceCIDR).Name)
			}
			return len(left) == 0, nil
		})
	if err != nil {
		t.Errorf("wait for the end of %d ServiceCIDRs: %v", len(left), err)
	}
}
