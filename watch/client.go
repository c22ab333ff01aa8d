package watch

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ClientConfig says how to reach the API server: by the kubeconfig file, with
// its server replaced by master if that is not empty, by master alone, or,
// with neither, as a pod's service account does (KUBERNETES_SERVICE_HOST and the
// mounted token). Objects travel as protobuf. There is no client-side
// rate limit: three watches and a few lists are all that is ever asked for, and
// the server's own priority and fairness does better.
func ClientConfig(kubeconfig, master string) (*rest.Config, error) {
	config, err := loadConfig(kubeconfig, master)
	if err != nil {
		return nil, fmt.Errorf("configure API client: %w", err)
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &timeoutTransport{newConnectTransport(next)} })
	return config, nil
}

// timeoutTransport makes an error of each request that times out before its answer
// begins. client-go takes a time-out for the end of a watch (rest.Request.Watch returns
// an empty watch and no error), and so hides that the API server does not answer.
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
	return fmt.Sprintf("no answer from the API server at %s (%v): is this an address that works without a service proxy?", e.server, e.cause)
}

func loadConfig(kubeconfig, master string) (*rest.Config, error) {
	if kubeconfig == "" && master == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags(master, kubeconfig)
}
