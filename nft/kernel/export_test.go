package kernel

import "github.com/mdlayher/netlink"

// HideOffsets makes the kernel answer as those do that know no offsets.
func (c *Conn) HideOffsets() error {
	return c.writer.conn.SetOption(netlink.ExtendedAcknowledge, false)
}
