package controlplane

import (
	"context"
	"fmt"
)

// KubeProxyVariable is an environment variable that names a minor release of kube-proxy, such as 1.36.
const KubeProxyVariable = "KUBE_PROXY"

// KubeProxy returns the path of a kube-proxy, after building it when it is missing. The release is a minor one, or ""
// for that of the cluster's other tools.
func KubeProxy(ctx context.Context, release string) (string, error) {
	switch release {
	case "", "1.37":
		return Tool(ctx, "kube-proxy")
	case "1.36", "1.38":
		return Tool(ctx, "kube-proxy-"+release)
	}
	return "", fmt.Errorf("kube-proxy %s: want 1.36, 1.37 or 1.38", release)
}
