package controlplane

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
	components := []string{controllerManager}
	if c.cfg.forKubelets() {
		components = append(components, scheduler)
	}
	for _, name := range components {
		if _, err := c.UserKubeconfig(name, "system:"+name); err != nil {
			return err
		}
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

// UserKubeconfig writes a kubeconfig of a user and its groups, under a name that is unique in the cluster's directory,
// and returns its absolute path. It holds everything by value, so it may be copied anywhere.
func (c *Cluster) UserKubeconfig(name, user string, groups ...string) (string, error) {
	pair, err := c.pki.client(user, groups...)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.cfg.Dir, name+".kubeconfig")
	return path, c.writeKubeconfig(path, certificateUser(pair))
}

// AuthorityPath is the path of the certificate of the authority that signs the certificates of clients.
func (c *Cluster) AuthorityPath() string { return c.pki.caCert }

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
