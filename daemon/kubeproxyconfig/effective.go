package kubeproxyconfig

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// Effective is the configuration that is in force, as kube-proxy would write it: the
// values of nftproxy's flags, and kube-proxy's defaults where nftproxy has no such
// setting. value returns a flag's value as text, and false if there is no such flag.
func Effective(value func(flag string) (string, bool)) (v1alpha1.KubeProxyConfiguration, error) {
	c := defaults()
	c.Mode = modeNFTables
	c.ClientConnection.QPS, c.ClientConnection.Burst = 0, 0 // The client has no limit.
	var errs []error
	for _, f := range slices.Concat(clientFields(&c), serverFields(&c), kernelFields(&c), nftablesFields(&c)) {
		text, ok := value(f.flag)
		if !ok {
			errs = append(errs, fmt.Errorf("--%s: there is no such flag", f.flag))
		} else if err := f.read(text); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", f.flag, err))
		}
	}
	if bit := c.NFTables.MasqueradeBit; bit != nil && *bit < 0 {
		c.NFTables.MasqueradeBit = nil
	}
	return c, errors.Join(errs...)
}
