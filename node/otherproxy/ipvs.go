package otherproxy

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// ipvsInterface is the interface that has the cluster IPs in kube-proxy's IPVS mode.
const ipvsInterface = "kube-ipvs0"

// findIPVS goes by the interface. It does not ask IPVS itself: that could load its module.
func findIPVS(*conn) ([]Rules, error) {
	_, err := netlink.LinkByName(ipvsInterface)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", ipvsInterface, err)
	}
	return []Rules{{Kind: IPVS, Table: ipvsInterface, Keep: ErrIPVS}}, nil
}
