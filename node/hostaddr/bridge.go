package hostaddr

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// OneWayBridges returns the bridges to addresses of pods that do not send a packet back by the port that it came by: a
// port to a pod is not in hairpin mode, and the bridge is not promiscuous either. They are sorted.
func OneWayBridges(pods []netip.Addr) ([]string, error) {
	devices, err := OnLink(pods)
	if err != nil {
		return nil, err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var found []string
	for _, bridge := range links {
		if _, is := bridge.(*netlink.Bridge); !is || bridge.Attrs().Promisc != 0 ||
			!slices.Contains(devices, bridge.Attrs().Name) {
			continue
		}
		for _, port := range links {
			if _, is := port.(*netlink.Veth); !is || port.Attrs().MasterIndex != bridge.Attrs().Index {
				continue
			}
			mode, err := netlink.LinkGetProtinfo(port)
			if err != nil {
				return nil, fmt.Errorf("port %s of the bridge %s: %w", port.Attrs().Name, bridge.Attrs().Name, err)
			}
			if !mode.Hairpin {
				found = append(found, bridge.Attrs().Name)
				break
			}
		}
	}
	slices.Sort(found)
	return found, nil
}

// OnLink returns the interfaces on whose link the addresses are, each once. Those of the node itself are on none.
func OnLink(addrs []netip.Addr) ([]string, error) {
	var devices []string
	for _, a := range addrs {
		r, err := Lookup(a)
		if err != nil {
			return nil, err
		}
		if !r.Local && !r.Via.IsValid() && r.Device != "" && !slices.Contains(devices, r.Device) {
			devices = append(devices, r.Device)
		}
	}
	return devices, nil
}
