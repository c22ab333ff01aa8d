package controlplane

import (
	"os"
	"strings"
)

// Newest stands for the API server of the other tests among the releases of Skew.
const Newest = "newest"

// Skew lists the minor releases of kube-apiserver that make test-skew asks for in NFTPROXY_SKEW, such as 1.29; none
// without it.
func Skew() []string {
	return strings.FieldsFunc(os.Getenv("NFTPROXY_SKEW"), func(r rune) bool { return r == ',' })
}

// Release is the configuration with the API server of one of them.
func (cfg Config) Release(release string) Config {
	if cfg.APIServer = release; release == Newest {
		cfg.APIServer = ""
	}
	return cfg
}

// IsRelease says whether the API server that runs is of the release.
func (p *Plane) IsRelease(release string) (version string, is bool, err error) {
	info, err := p.Client.Discovery().ServerVersion()
	if err != nil {
		return "", false, err
	}
	return info.GitVersion, release == Newest || strings.HasPrefix(info.GitVersion, "v"+release+"."), nil
}
