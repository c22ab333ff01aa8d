package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nftproxy/test/cmd/soak/script"
)

// setCrowd makes or deletes Services that no client asks, until there are n. Each has its
// address of the API server's choice and a few endpoints, so that the sets of all Services
// grow and shrink.
func (w *world) setCrowd(n int) error {
	services := w.plane.Client.CoreV1().Services(crowd)
	there, err := services.List(w.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, s := range there.Items {
		known[s.Name] = true
	}
	const workers = 8
	group, ctx := errgroup.WithContext(w.ctx)
	group.SetLimit(workers)
	for i := range script.MaxCrowd {
		name := fmt.Sprintf("c%d", i)
		switch {
		case i < n && !known[name]:
			group.Go(func() error { return w.addToCrowd(ctx, name, 1+i%4) })
		case i >= n && known[name]:
			group.Go(func() error { return services.Delete(ctx, name, metav1.DeleteOptions{}) })
		}
	}
	return group.Wait()
}

func (w *world) addToCrowd(ctx context.Context, name string, endpoints int) error {
	port := corev1.ServicePort{Name: "p", Protocol: corev1.ProtocolTCP, Port: tcpPort}
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyRequireDualStack),
			Ports: []corev1.ServicePort{port}},
	}
	if _, err := w.plane.Client.CoreV1().Services(crowd).Create(ctx, s, metav1.CreateOptions{}); err != nil {
		return err
	}
	// The slices of a deleted Service stay, so this one may be there already.
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name,
			discoveryv1.LabelManagedBy: "soak.nftproxy"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("p"), Protocol: ptr.To(corev1.ProtocolTCP),
			Port: ptr.To(int32(8080))}},
	}
	for i := range endpoints {
		address := w.Pod(script.Pods()[i]).Addrs.V4().String()
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	_, err := w.plane.Client.DiscoveryV1().EndpointSlices(crowd).Create(ctx, slice, metav1.CreateOptions{})
	if refusedByAPI(err) {
		return nil
	}
	return err
}
