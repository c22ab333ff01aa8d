package main

import (
	"golang.org/x/sys/unix"

	"nftproxy/daemon/privilege"
)

// limitPrivileges gives up all capabilities but two: CAP_NET_ADMIN, for nftables, connection tracking and its
// settings, and CAP_NET_BIND_SERVICE, for servers and healthCheckNodePorts below 1024. The latter allows
// nothing beyond the former, which may set net.ipv4.ip_unprivileged_port_start.
//
// It comes before the proxy reads its kubeconfig, so that a file which it cannot read any more, because
// another user owns it, shows at the start. The configuration file was read before; it is
// read without the privileges when it changes.
//
// A process that has more than it needs serves as well as others, so a failure does not end it.
func (d *daemon) limitPrivileges() {
	keep := privilege.Of(unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE)
	before, after, err := privilege.Limit(keep)
	if err != nil {
		d.log.Warn("could not give up privileges; going on with more than nftproxy needs", "capabilities", after.Permitted.String(), "err", err)
		return
	}
	if before != after {
		d.log.Info("gave up privileges", "kept", after.Permitted.String(), "before", before.Permitted.Len())
	}
}
