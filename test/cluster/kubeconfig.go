package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	authentication "k8s.io/api/authentication/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// serverURL is the API server's address as its clients write it.
func (c *Cluster) serverURL() string { return "https://" + c.apiAddr().String() }

// writeClientConfigs makes the administrator's and the controllers' kubeconfigs, and the configuration of Client.
func (c *Cluster) writeClientConfigs() error {
	admin, err := c.pki.client("admin", "system:masters")
	if err != nil {
		return err
	}
	if err := c.writeKubeconfig(c.AdminKubeconfig(), certificateUser(admin)); err != nil {
		return err
	}
	controllers, err := c.pki.client("system:kube-controller-manager")
	if err != nil {
		return err
	}
	path := filepath.Join(c.cfg.Dir, controllerManager+".kubeconfig")
	if err := c.writeKubeconfig(path, certificateUser(controllers)); err != nil {
		return err
	}
	c.clientCfg = &rest.Config{
		Host:            c.serverURL(),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.pki.caPEM, CertData: admin.cert, KeyData: admin.key},
		QPS:             -1,                // no limit
		WarningHandler:  rest.NoWarnings{}, // of deprecated fields, which tests use on purpose
		Dial:            c.ns.dial,
	}
	return nil
}

// ServiceAccountKubeconfig writes a kubeconfig for an existing service account and
// returns its absolute path. The API server issues its token, which is valid for a day.
// The file holds everything by value, so it may be copied anywhere.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	client, err := kubernetes.NewForConfig(c.clientCfg)
	if err != nil {
		return "", fmt.Errorf("ask for a token: %w", err)
	}
	day := int64(24 * 60 * 60)
	request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &day}}
	answer, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, meta.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ask for a token for service account %s/%s: %w", namespace, name, err)
	}
	path := filepath.Join(c.cfg.Dir, fmt.Sprintf("service-account.%s.%s.kubeconfig", namespace, name))
	return path, c.writeKubeconfig(path, &api.AuthInfo{Token: answer.Status.Token})
}

func certificateUser(pair keyPair) *api.AuthInfo {
	return &api.AuthInfo{ClientCertificateData: pair.cert, ClientKeyData: pair.key}
}

func (c *Cluster) writeKubeconfig(path string, user *api.AuthInfo) error {
	config := api.NewConfig()
	config.Clusters["test"] = &api.Cluster{Server: c.serverURL(), CertificateAuthorityData: c.pki.caPEM}
	config.AuthInfos["test"] = user
	config.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
