package basechain

// View says which addresses a chain sees of a packet whose destination a chain of type nat translates.
type View int

// The views.
const (
	// Later: the chain is called after the translation. A chain of type nat is not called for the packet at all.
	Later View = iota
	// Unknown: the two chains have the same priority. The kernel calls the one first that was registered later, which
	// it does not tell.
	Unknown
	// Earlier: the chain sees the destination from before the translation.
	Earlier
)

// ViewOf says what the chain sees of packets that a nat chain with that priority translates, at the hooks prerouting
// and output.
//
// The kernel asks the chains of type nat of a hook one after the other, by priority, for the first packet of a
// connection only, and no further ones once a chain has set up a translation (nf_nat_inet_fn). Chains with the same
// priority stand in the list in the reverse order of their registration (nf_hook_entries_grow, the same from Linux 4.14
// to 6.18).
func (c *Chain) ViewOf(priority int32) View {
	switch {
	case c.Hook == "ingress", c.Family == "bridge" && c.Hook == "prerouting":
		return Earlier
	case c.Family == "bridge", c.Hook != "prerouting" && c.Hook != "output", c.Priority > priority:
		return Later
	case c.Priority == priority:
		return Unknown
	}
	return Earlier
}
