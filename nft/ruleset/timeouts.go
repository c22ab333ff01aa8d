package ruleset

import (
	"nftproxy/model/service"
	"nftproxy/nft"
)

// dnsPort is the port of a Service whose connections get Config.DNSTimeouts. Clients know this port, whichever port the
// endpoints or the node have for it.
const dnsPort = 53

// timeoutsOf returns those of connections to a port: what the Service asks for, or else the configuration's for DNS. A
// rule for ranges of ports serves all of them, so that ranges with port 53 are not DNS.
func (c *Config) timeoutsOf(svc *service.Service, p *service.Port) service.Timeouts {
	t := svc.Options.TimeoutsOf(p.Protocol)
	if t == (service.Timeouts{}) && isDNS(p) {
		return c.DNSTimeouts
	}
	return t
}

func isDNS(p *service.Port) bool {
	return p.Protocol == service.UDP && p.Port == dnsPort && !p.IsRange()
}

// timeoutObject makes the object of time-outs that chains refer to. The program wants it while a chain gives it; the
// kernel keeps it (nft.Timeout).
type timeoutObject service.Timeouts

func (t timeoutObject) make(*Config, pods) made {
	return made{timeouts: []nft.Timeout{{Name: service.Timeouts(t).String(), Protocol: uint8(t.Protocol),
		Unreplied: t.Unreplied, Replied: t.Replied, Established: t.Established}}}
}
