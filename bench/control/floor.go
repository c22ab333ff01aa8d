package control

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/watch"
)

// Floor is a process that does for each change of an EndpointSlice what no proxy with
// client-go can leave out: the watch, and one netlink transaction with the elements of the
// endpoints that differ. It has no Services, rules, log or metrics. Once all endpoints are
// in the kernel it writes the line that nftproxy logs after a sync. It runs until the context ends.
func Floor(ctx context.Context, kubeconfig string, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	config, err := watch.ClientConfig(kubeconfig, "")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	slices := client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)
	listWatch := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return slices.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return slices.Watch(ctx, o)
		},
	}
	store := &floorStore{conn: conn, out: out, failed: cancel, slices: map[string]floorSlice{}}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(listWatch, client), &discoveryv1.EndpointSlice{}, store,
		cache.ReflectorOptions{}).RunWithContext(ctx)
	return context.Cause(ctx)
}

// floorSlice is what has to be known of an EndpointSlice to write only what differs.
type floorSlice struct {
	// first is the key of its first endpoint.
	first uint32
	addrs []netip.Addr
}

// floorStore writes the slices of a reflector to the kernel, and keeps only their addresses.
type floorStore struct {
	conn *kernel.Conn
	out  io.Writer
	// failed ends the process: the reflector would go on after an error.
	failed context.CancelCauseFunc
	slices map[string]floorSlice
	next   uint32
}

func floorTable() nft.TableID { return nft.TableID{Family: nft.IPv4, Name: "floor"} }

func floorSet() *nft.Set {
	return &nft.Set{Name: "endpoints", Key: nft.Fields{nft.Index}, Data: nft.Fields{nft.Daddr, nft.Dport}, Size: 1 << 18}
}

// Replace loads the list, and says that it is there.
func (s *floorStore) Replace(list []any, _ string) error {
	ops := []nft.Op{nft.AddTable{Table: floorTable()}, nft.AddSet{Table: floorTable(), Set: floorSet()}}
	var added []nft.OwnedElement
	for _, o := range list {
		_, more := s.change(o.(*discoveryv1.EndpointSlice))
		added = append(added, more...)
	}
	if err := s.write(append(ops, nft.AddElements{Table: floorTable(), Set: floorSet(), Elements: added})); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.out, `{"msg":"synced"}`)
	return err
}

// Update writes the endpoints that differ.
func (s *floorStore) Update(o any) error {
	gone, added := s.change(o.(*discoveryv1.EndpointSlice))
	var ops []nft.Op
	if len(gone) > 0 {
		ops = append(ops, nft.DeleteElements{Table: floorTable(), Set: floorSet(), Elements: gone})
	}
	if len(added) > 0 {
		ops = append(ops, nft.AddElements{Table: floorTable(), Set: floorSet(), Elements: added})
	}
	if len(ops) == 0 {
		return nil
	}
	return s.write(ops)
}

// Add is Update.
func (s *floorStore) Add(o any) error { return s.Update(o) }

// Delete takes a slice's endpoints away.
func (s *floorStore) Delete(o any) error {
	empty := o.(*discoveryv1.EndpointSlice).DeepCopy()
	empty.Endpoints = nil
	return s.Update(empty)
}

// Resync has nothing to do.
func (s *floorStore) Resync() error { return nil }

// change notes a slice's addresses, and returns the elements that go and come.
func (s *floorStore) change(o *discoveryv1.EndpointSlice) (gone, added []nft.OwnedElement) {
	before, found := s.slices[o.Name]
	after := floorSlice{first: before.first}
	if !found {
		after.first = s.next
		s.next += maxSlice
	}
	for i := range max(len(before.addrs), len(o.Endpoints)) {
		var was, is netip.Addr
		if i < len(before.addrs) {
			was = before.addrs[i]
		}
		if i < len(o.Endpoints) {
			is, _ = netip.ParseAddr(o.Endpoints[i].Addresses[0])
			after.addrs = append(after.addrs, is)
		}
		key := after.first + uint32(i)
		switch {
		case was == is:
			continue
		case was.Is4() && is.Is4():
			gone, added = append(gone, floorElement(key, was)), append(added, floorElement(key, is))
		case is.Is4():
			added = append(added, floorElement(key, is))
		case was.Is4():
			gone = append(gone, floorElement(key, was))
		}
	}
	s.slices[o.Name] = after
	return gone, added
}

func floorElement(key uint32, a netip.Addr) nft.OwnedElement {
	return nft.OwnedElement{Element: nft.Element{
		Set: floorSet().Name, Key: nft.Value(nft.AppendIndex(nil, key)), Data: nft.Value(nft.AppendPort(nft.AppendAddr(nil, a), 80)),
	}}
}

// write sends the operations as one transaction. An error ends the process.
func (s *floorStore) write(ops []nft.Op) error {
	err := s.conn.Apply(nft.Batch{Ops: ops})
	if err != nil {
		s.failed(fmt.Errorf("write endpoints: %w", err))
	}
	return err
}
