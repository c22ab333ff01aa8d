package control

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"nftproxy/bench/proxies"
	"nftproxy/test/lib/controlplane"
	"nftproxy/watch"
)

// writers is how many writes to the API server are under way at once, in measurements
// with a constant rate.
const writers = 16

// world is an API server with the objects of one size. The measurements change the
// objects, but neither their number nor their shape.
type world struct {
	size  Size
	plane *controlplane.Plane
	// client and writes speak protobuf, as proxies do, so that the API server has the least work
	// with its answers.
	client *watch.Client
	writes kubernetes.Interface
	// past writes to etcd, past the API server.
	past *controlplane.Writer
	// first is the number of each service's first endpoint.
	first []int

	mu sync.Mutex
	// changed holds the slices that are not as they were seeded, by name.
	changed map[string]*discoveryv1.EndpointSlice
	// later counts the addresses of endpoints that were added later.
	later int
}

// newWorld starts an API server and stores the objects. After an error it leaves nothing
// behind.
func newWorld(ctx context.Context, size Size, log io.Writer) (*world, error) {
	plane, err := proxies.StartPlane(ctx, log)
	if err != nil {
		return nil, err
	}
	w := newIndex(size)
	w.plane, w.past = plane, plane.Cluster.NewWriter()
	config := rest.CopyConfig(plane.Cluster.Client())
	config.ContentType = runtime.ContentTypeProtobuf
	if w.client, err = watch.NewClient(config); err == nil {
		w.writes, err = kubernetes.NewForConfig(config)
	}
	if err == nil {
		err = size.objects(func(some []runtime.Object) error { return plane.Cluster.Seed(ctx, some...) })
	}
	if err != nil {
		return nil, joinClose(err, w.stop)
	}
	return w, nil
}

// newIndex returns a world without an API server. It has the places of all endpoints.
func newIndex(size Size) *world {
	w := &world{size: size, changed: map[string]*discoveryv1.EndpointSlice{}}
	n := 0
	for i := range size.Services {
		w.first = append(w.first, n)
		n += size.endpointsOf(i)
	}
	return w
}

// nextIP returns an address that no endpoint has had.
func (w *world) nextIP() netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.later++
	return laterIP(w.later)
}

// slice returns a copy of an EndpointSlice of a Service as it is now.
func (w *world) slice(service, n int) *discoveryv1.EndpointSlice {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, found := w.changed[sliceName(serviceName(service), n)]; found {
		return s.DeepCopy()
	}
	return w.size.slices(service, w.first[service])[n]
}

// update writes a slice to the API server, whatever version the server has.
func (w *world) update(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	if _, err := w.writes.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Update(ctx, s,
		metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update EndpointSlice %s: %w", s.Name, err)
	}
	w.note(s)
	return nil
}

// updatePast writes a slice past the API server.
func (w *world) updatePast(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	if err := w.past.Put(ctx, s); err != nil {
		return err
	}
	w.note(s)
	return nil
}

// note remembers the present content of a slice.
func (w *world) note(s *discoveryv1.EndpointSlice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[s.Name] = s
}

// spot is an endpoint's place.
type spot struct{ service, slice, endpoint int }

// spots lists the places of count endpoints, evenly over the Services. If a Service comes
// up again, its next endpoint follows, in turn.
func (w *world) spots(count int) []spot {
	var list []spot
	times := map[int]int{}
	for _, service := range w.size.spread(count) {
		j := times[service] % w.size.endpointsOf(service)
		times[service]++
		list = append(list, spot{service, j / maxSlice, j % maxSlice})
	}
	return list
}

// replace gives the endpoint at a spot another address. It returns the slice to write.
func (w *world) replace(at spot, to netip.Addr) *discoveryv1.EndpointSlice {
	s := w.slice(at.service, at.slice)
	s.Endpoints[at.endpoint] = newEndpoint(to, at.service+at.endpoint)
	return s
}

func (w *world) stop() error {
	w.past.Close()
	return w.plane.Stop()
}
