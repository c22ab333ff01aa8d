package data

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
	"nftproxy/test/lib/controlplane"
)

// prepare makes all sites. The API server that the proxies learn from is gone
// when it returns.
func (r *run) prepare(ctx context.Context, list []proxies.Proxy) (err error) {
	bare := []string{result.OneStaticRule, result.NoProxy}
	if r.Effort.Again {
		bare = append(bare, again)
	}
	for _, backend := range bare {
		s, err := newBareSite(backend)
		if err != nil {
			return err
		}
		r.sites = append(r.sites, s)
	}
	r.Doing("data plane: API server")
	plane, err := proxies.StartPlane(ctx, r.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	before := 0
	for _, services := range r.Sizes {
		if err := r.programSize(ctx, plane, list, before, services); err != nil {
			return fmt.Errorf("%s services: %w", result.Count(services), err)
		}
		before = services
	}
	return ctx.Err()
}

// programSize has each proxy write its rules for a number of services. One that
// cannot has a site that says why.
func (r *run) programSize(ctx context.Context, plane *controlplane.Plane, list []proxies.Proxy, before,
	services int) error {
	r.Doing("data plane: " + result.Count(services) + " services")
	for _, step := range steps(before, services) {
		if err := plane.Cluster.Seed(ctx, step...); err != nil {
			return err
		}
	}
	if err := awaitServed(ctx, plane, services); err != nil {
		return err
	}
	awaited := newAwaited(func(names string) { r.Doing("data plane: " + result.Count(services) + " services, " + names) })
	var group errgroup.Group // two cores or more, and each proxy waits for the kernel half of the time
	for _, p := range list {
		n, err := proxies.NewNode(ctx, plane)
		var s *site
		if err == nil {
			s, err = newProxySite(n, p.Name, services)
		}
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		r.sites = append(r.sites, s)
		awaited.add(p.Name)
		group.Go(func() error {
			defer awaited.remove(p.Name)
			if s.failed = s.program(ctx, p, n, r.Limit); s.failed != nil {
				fmt.Fprintf(r.Log, "data plane, %s services, %s: %v\n", result.Count(services), p.Name, s.failed)
			}
			return nil
		})
	}
	return group.Wait()
}

// awaitServed returns once the API server gives out the last of what was written
// past it: then it has seen all.
func awaitServed(ctx context.Context, plane *controlplane.Plane, services int) error {
	name := affinityService(services)[0].(metav1.Object).GetName()
	cached := metav1.GetOptions{ResourceVersion: "0"} // from where informers list
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool,
		error) {
		_, err := plane.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, name, cached)
		if err == nil {
			_, err = plane.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, name, cached)
		}
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("wait for service %s to be served: %w", name, err)
	}
	return nil
}

// awaited reports the names of those that have not finished yet. Its methods are safe
// for concurrent use.
type awaited struct {
	report func(names string)

	mu    sync.Mutex
	names []string
}

func newAwaited(report func(names string)) *awaited { return &awaited{report: report} }

func (a *awaited) add(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.names = append(a.names, name)
	a.report(strings.Join(a.names, ", "))
}

func (a *awaited) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.names = slices.DeleteFunc(a.names, func(n string) bool { return n == name })
	if len(a.names) > 0 {
		a.report(strings.Join(a.names, ", "))
	}
}
