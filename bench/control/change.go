package control

import (
	"context"
	"fmt"
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"nftproxy/test/lib/controlplane"
)

// change is one write, and the address by which the kernel shows that the change has
// arrived. Without an address the proxy's log shows it, and no time from outside is
// taken.
type change struct {
	write func(context.Context) error
	seen  netip.Addr
}

// changes are changes of one kind, made one after the other.
type changes struct {
	list []change
	// prepare and clean up run outside of the measured time; nil does nothing.
	prepare, clean func(context.Context) error
}

// replacements give count endpoints another address.
func (w *world) replacements(count int) changes {
	var c changes
	for _, at := range w.spots(count) {
		to := w.nextIP()
		c.list = append(c.list, change{
			write: func(ctx context.Context) error { return w.update(ctx, w.replace(at, to)) },
			seen:  to,
		})
	}
	return c
}

// scalings add an endpoint to a Service and remove it again. The kernel shows a removal
// when the address goes. kube-proxy delays that.
func (w *world) scalings(count int) changes {
	var c changes
	for _, service := range w.size.spread((count + 1) / 2) {
		extra := w.nextIP()
		last := w.slicesOf(service) - 1
		c.list = append(c.list, change{
			write: func(ctx context.Context) error {
				s := w.slice(service, last)
				s.Endpoints = append(s.Endpoints, newEndpoint(extra, service))
				return w.update(ctx, s)
			},
			seen: extra,
		}, change{
			write: func(ctx context.Context) error {
				s := w.slice(service, last)
				s.Endpoints = s.Endpoints[:len(s.Endpoints)-1]
				return w.update(ctx, s)
			},
		})
	}
	c.list = c.list[:count]
	return c
}

// mostExtra is the most endpoints of Services that are added and deleted.
const mostExtra = 50

// extraService is a Service that comes and goes, with its slice.
type extraService struct {
	name  string
	ip    netip.Addr
	slice *discoveryv1.EndpointSlice
	first netip.Addr // of its endpoints
}

func (w *world) extraServices(count int) []extraService {
	var list []extraService
	for k := range count {
		x := extraService{name: fmt.Sprintf("extra-%05d", k), ip: extraIP(k)}
		var endpoints []discoveryv1.Endpoint
		for j := range min(w.size.Endpoints, mostExtra) {
			a := w.nextIP()
			if j == 0 {
				x.first = a
			}
			endpoints = append(endpoints, newEndpoint(a, k+j))
		}
		x.slice = newSlice(x.name, 0, endpoints...)
		x.slice.UID = "" // the API server gives it one
		list = append(list, x)
	}
	return list
}

// additions add Services whose EndpointSlices exist already, so that all of a Service
// comes at once. They are written past the API server, whose time for each new Service
// grows with the number of Services. The Services stay, for removals.
func (w *world) additions(extra []extraService) changes {
	c := changes{prepare: func(ctx context.Context) error {
		for _, x := range extra {
			if _, err := w.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Create(ctx, x.slice, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("create EndpointSlice %s: %w", x.slice.Name, err)
			}
		}
		return nil
	}}
	for _, x := range extra {
		var object runtime.Object = controlplane.Service(x.name, x.ip)
		c.list = append(c.list, change{
			write: func(ctx context.Context) error { return w.plane.Cluster.Seed(ctx, object) },
			seen:  x.first,
		})
	}
	return c
}

// clear deletes all remaining extra Services.
func (w *world) clear(ctx context.Context, extra []extraService) error {
	for _, x := range extra {
		err := w.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Delete(ctx, x.slice.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete EndpointSlice %s: %w", x.slice.Name, err)
		}
		err = w.client.CoreV1().Services(metav1.NamespaceDefault).Delete(ctx, x.name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete Service %s: %w", x.name, err)
		}
	}
	return nil
}

// removals delete the added Services. In the end they delete all extra slices, and the
// Services that are left when time is up.
func (w *world) removals(extra []extraService, added int) changes {
	c := changes{clean: func(ctx context.Context) error { return w.clear(ctx, extra) }}
	for _, x := range extra[:added] {
		c.list = append(c.list, change{
			write: func(ctx context.Context) error {
				if err := w.client.CoreV1().Services(metav1.NamespaceDefault).Delete(ctx, x.name, metav1.DeleteOptions{}); err != nil {
					return fmt.Errorf("delete Service %s: %w", x.name, err)
				}
				return nil
			},
			seen: x.ip,
		})
	}
	return c
}
