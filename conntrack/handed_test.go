package conntrack

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
)

// lateServer is a pod's server of UDP that answers when it is told to.
type lateServer struct {
	*live
	net.PacketConn
	name string
}

// latePort is its port.
const latePort = 5399

func (l *live) serveLate(pod string) *lateServer {
	l.Helper()
	p := l.Pod(pod)
	socket, err := p.NS.ListenPacket(l.Context(), "udp", netip.AddrPortFrom(l.addr(p.Addrs), latePort).String())
	l.must(err)
	l.Cleanup(func() { _ = socket.Close() })
	return &lateServer{l, socket, pod}
}

// question waits for a datagram, and returns the function that answers it.
func (s *lateServer) question() (answer func()) {
	s.Helper()
	s.must(s.SetDeadline(time.Now().Add(patience)))
	b := make([]byte, 100)
	_, from, err := s.ReadFrom(b)
	s.must(err)
	return func() {
		s.Helper()
		s.must(s.SetDeadline(time.Now().Add(patience)))
		_, err := s.WriteTo([]byte(s.name), from)
		s.must(err)
	}
}

// wantLate wants the answer to an earlier question.
func (c *conn) wantLate(want string) {
	c.Helper()
	b := make([]byte, 100)
	c.must(c.SetDeadline(time.Now().Add(patience)))
	n, err := c.Read(b)
	if err != nil || string(b[:n]) != want {
		c.Errorf("answer %q, error %v, want %q", b[:n], err, want)
	}
}

// byOthers has all Services of a text but the bystander served by another proxy.
func byOthers(text string) string {
	return bystander + strings.Replace(strings.TrimPrefix(text, bystander), "Z\n", "Z\n  other-proxy\n", 1)
}

// TestHandedOver: a Service goes to another proxy and comes back, while its endpoint is about to answer. The entry
// stays, so the answer reaches the client. A Service that is deleted loses its entries, also if another proxy has had
// it in between.
func TestHandedOver(t *testing.T) {
	families(t, func(l *live) {
		served := webWith("  port dns udp 53 node-port 30053\n", "LATE")
		late := l.serveLate("one")
		served = strings.ReplaceAll(served, "LATE", netip.AddrPortFrom(l.addr(l.Pod("one").Addrs), latePort).String())
		end := l.startCleaner()
		l.become(served, "")
		l.standBy()
		asks := []*conn{l.dial(l.client, l.at("CLUSTER", 53)), l.dial(l.Outside, l.at("NODE", 30053))}
		ids := map[*conn]uint32{}
		// during asks, lets the change happen, and answers.
		during := func(change func()) {
			l.Helper()
			var answers []func()
			for _, c := range asks {
				c.send()
				answers = append(answers, late.question())
				f, _ := c.entry()
				if last := ids[c]; last != 0 && last != f.ID {
					l.Errorf("the entry is another one: %v", f)
				}
				ids[c] = f.ID
			}
			change()
			for i, c := range asks {
				answers[i]()
				c.wantLate("one")
			}
		}
		restart := func(services, removed string) {
			l.Helper()
			end()
			end = l.startCleaner()
			m, err := l.kernel.Read(ruleset.Compile(l.cfg, l.builder.Snapshot()))
			l.must(err)
			node := l.builder.Snapshot().Node
			l.cleaner.ServedBefore(func() service.Snapshot { return ruleset.ReadBack(m, l.cfg.Table, node) })
			l.updates++ // The index gets the former snapshot, and then the present one.
			l.become(services, removed)
		}
		// The label comes and goes.
		during(func() { l.become(byOthers(served), "") })
		during(func() { l.become(served, "") })
		// The option --nftproxy-service-proxy-name comes, another start follows, and it goes.
		during(func() { restart(byOthers(served), "") })
		during(func() { restart(byOthers(served), "") })
		during(func() { restart(served, "") })
		// The Service is deleted while it is the other proxy's.
		during(func() { l.become(byOthers(served), "") })
		l.become(bystander, "service gone: 2")
		for _, c := range asks {
			c.wantNoEntry()
		}
	})
}

// TestHandedOverLater: a Service is deleted, and another proxy soon serves one with the same address and endpoint. Its
// entries are no former ones of ours.
func TestHandedOverLater(t *testing.T) {
	families(t, func(l *live) {
		l.become(web("ONE-POD"), "")
		l.standBy()
		c := l.dial(l.client, l.at("CLUSTER", 53))
		c.wantAnswer("one")
		l.become(bystander, "service gone: 1")
		loadRules(l, l.Node, l.addrs.Replace(`table FAMILY proxy {
	chain prerouting {
		type nat hook prerouting priority dstnat - 5; policy accept;
		FAMILY daddr CLUSTER udp dport 53 dnat to ONE-POD
	}
}`))
		l.become(byOthers(web("ONE-POD")), "")
		c.wantAnswer("one")
		f, found := c.entry()
		l.cleaner.CheckAll() // The next pass looks at everything.
		l.become(byOthers(webWith("  port dns udp 53\n", "ONE-POD")), "")
		if again, there := c.entry(); !found || !there || again.ID != f.ID {
			t.Errorf("entry %v became %v", f, again)
		}
	})
}
