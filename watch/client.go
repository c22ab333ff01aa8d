package watch

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
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
	return config, nil
}

func loadConfig(kubeconfig, master string) (*rest.Config, error) {
	if kubeconfig == "" && master == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags(master, kubeconfig)
}
