package preflight

import "nftproxy/node/otherproxy"

// felix is the finding about Calico's Felix, which may change its data plane when kube-proxy's tables are removed.
func felix(find func() (otherproxy.Felix, error)) Finding {
	const probe = "calico"
	f, err := find()
	switch {
	case err != nil:
		return failed(probe, err)
	case f.Depends():
		return yellow(probe, f.String(), "before kube-proxy is stopped, set Felix' "+otherproxy.FelixRemedy)
	}
	return green(probe, f.String())
}
