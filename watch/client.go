package watch

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"nftproxy/model/service"
	"nftproxy/watch/wire"
)

// ClientConfig says how to reach the API server: by the kubeconfig file, with its server replaced
// by master if that is not empty, by master alone, or, with neither, as a pod's service account
// does (KUBERNETES_SERVICE_HOST and the mounted token). Objects travel as protobuf. There is no
// client-side rate limit: the proxy asks only for a few watches and lists, and the server's own
// priority and fairness limits requests better.
func ClientConfig(kubeconfig, master string) (*rest.Config, error) {
	config, err := loadConfig(kubeconfig, master)
	if err != nil {
		return nil, fmt.Errorf("configure API client: %w", err)
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.QPS = -1
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &timeoutTransport{newConnectTransport(next)} })
	return config, nil
}

// Client sends requests to an API server. They share one connection.
type Client struct {
	// core is for the rare requests, which have an answer of a bounded size.
	core             *rest.RESTClient
	services         *wire.Client[*serviceObject]
	slices           *wire.Client[*sliceObject]
	cidrs, betaCIDRs *wire.Client[*cidrObject]
	nodes            *wire.Client[*nodeObject]
}

// NewClient returns a client with a configuration, such as that of ClientConfig. It sends no request.
func NewClient(config *rest.Config) (*Client, error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	codecs := serializer.NewCodecFactory(wire.Scheme())
	core, err := newCore(config, httpClient, codecs)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	c := &Client{core: core}
	var errs [5]error
	c.services, errs[0] = wire.NewClient(config, httpClient, codecs, serviceKind())
	c.slices, errs[1] = wire.NewClient(config, httpClient, codecs, sliceKind())
	const cidrs = "servicecidrs"
	c.cidrs, errs[2] = wire.NewClient(config, httpClient, codecs,
		wire.Whole(networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), cidrs, convertCIDR))
	c.betaCIDRs, errs[3] = wire.NewClient(config, httpClient, codecs,
		wire.Whole(networkingv1beta1.SchemeGroupVersion.WithKind("ServiceCIDR"), cidrs, convertBetaCIDR))
	c.nodes, errs[4] = wire.NewClient(config, httpClient, codecs,
		wire.Whole(corev1.SchemeGroupVersion.WithKind("Node"), "nodes", convertNode))
	return c, errors.Join(errs[:]...)
}

// newCore returns client-go's client for the core group.
func newCore(config *rest.Config, httpClient *http.Client, codecs serializer.CodecFactory) (*rest.RESTClient, error) {
	return wire.NewREST(config, wire.Bound(httpClient, true), codecs, corev1.SchemeGroupVersion)
}

// Node returns what the API server's cache knows of a Node, without host addresses, and its kubelet's port; nil if
// there is none. It needs no other right than that to list Nodes. The server answers a list of one name as it does a
// get.
func (c *Client) Node(ctx context.Context, name string) (facts *service.Node, kubeletPort uint16, err error) {
	list, err := c.nodes.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: "0"})
	if err != nil {
		return nil, 0, fmt.Errorf("read Node %s: %w", name, err)
	}
	for _, n := range list.Items {
		if n.facts.Name == name {
			return &n.facts, n.kubeletPort, nil
		}
	}
	return nil, 0, nil
}

// serviceKind and sliceKind have the labels and annotations that the conversions read.

func serviceKind() wire.Kind[*serviceObject] {
	keys := append([]string{labelProxyName, service.OptionPrefix, service.UDPHandlingAnnotation, annotationIdledAt},
		service.MisspeltKeys()...)
	return wire.Services(convertService, append(keys, service.OtherAnnotations()...)...)
}

func sliceKind() wire.Kind[*sliceObject] {
	weights := weightKeys()
	keys := append(weights[:], labelHeadless, discoveryv1.LabelServiceName, corev1.EndpointsLastChangeTriggerTime,
		service.OptionPrefix, "service.cilium.io/", "kube*", "*/service-name", "service-name", "*/weight")
	return wire.EndpointSlices(convertSlice, append(keys, service.MisspeltKeys()...)...)
}

// timeoutTransport has the error of a request that times out before its answer begins name the server and a
// likely cause.
type timeoutTransport struct{ next http.RoundTripper }

// RoundTrip sends the request.
func (t *timeoutTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err != nil && request.Context().Err() == nil && utilnet.IsTimeout(err) {
		err = &unansweredError{request.URL.Host, err}
	}
	return response, err
}

// WrappedRoundTripper is for client-go, which looks for transports behind others.
func (t *timeoutTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// unansweredError has no method Timeout, and does not unwrap to an error that has.
type unansweredError struct {
	server string
	cause  error
}

func (e *unansweredError) Error() string {
	return fmt.Sprintf("no answer from the API server at %s (%v): is this an address that works without a service proxy?",
		e.server, e.cause)
}

func loadConfig(kubeconfig, master string) (*rest.Config, error) {
	if kubeconfig == "" && master == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags(master, kubeconfig)
}
