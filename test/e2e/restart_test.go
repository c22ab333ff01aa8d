package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/ip"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// conversation is a TCP connection that stays open.
type conversation struct {
	conn  net.Conn
	read  *bufio.Reader
	lines int
}

func (n *node) converse(from *testnet.Namespace, to string) *conversation {
	n.t.Helper()
	conn, err := from.Dial(n.ctx, "tcp", to)
	n.must(err)
	n.t.Cleanup(func() { conn.Close() })
	c := &conversation{conn: conn, read: bufio.NewReader(conn)}
	_, err = c.read.ReadString('\n') // who the server is
	n.must(err)
	return c
}

// goesOn says a line and expects it back.
func (c *conversation) goesOn() error {
	c.lines++
	said := fmt.Sprintf("line %d\n", c.lines)
	if _, err := c.conn.Write([]byte(said)); err != nil {
		return err
	}
	heard, err := c.read.ReadString('\n')
	if err == nil && heard != said {
		err = fmt.Errorf("said %q, heard %q", said, heard)
	}
	return err
}

// TestRestart stops the proxy and starts it again with nothing changed: nothing
// is written, and no connection notices.
func TestRestart(t *testing.T) {
	n := newNode(t)
	nft := netfilter.NFTForTest(t)
	client := n.addClient()
	spec := service("web", "")
	spec.Spec.Type = "NodePort"
	web := n.create(spec)
	// The slices are the test's own, so that the first program has them: a chain that
	// a later one no longer uses would go ten seconds after, at any moment of the test.
	publish := func(pod string) {
		for _, a := range n.addServer(pod).Addrs {
			n.publish(slice(sliceName(pod, a), web, a))
		}
	}
	publish("web-1")
	publish("web-2")
	p := n.startProxy()
	serves := func() error {
		return everywhere(func(protocol string, family ip.Family) error {
			return n.reaches(client, protocol, address(web, protocol, family), "web-1", "web-2")
		})
	}
	p.until("two pods serve", serves)
	talks := []*conversation{
		n.converse(client, address(web, testnet.TCP, ip.V4).String()),
		n.converse(client, address(web, testnet.TCP, ip.V6).String()),
		n.converse(n.Node, address(web, testnet.TCP, ip.V4).String()),
	}
	goOn := func() error {
		var errs []error
		for _, c := range talks {
			errs = append(errs, c.goesOn())
		}
		return errors.Join(errs...)
	}
	n.must(goOn())
	// With the handles, which would tell of anything made again; without who owns it, and
	// without how long the noted connections still count.
	expires := regexp.MustCompile(` expires [0-9a-z]+`)
	listing := func() string {
		text, err := nft.Run(n.Node, "", "--handle", "list", "ruleset")
		n.must(err)
		return expires.ReplaceAllString(text, "")
	}
	conn := n.nftables()

	p.stop()
	n.must(goOn(), serves())
	before, generation := listing(), n.generation(conn)
	p = n.startProxy()
	n.must(goOn(), serves())
	const claims = 2 // of each table, in a transaction of its own
	if got := n.generation(conn) - generation; got > claims {
		t.Errorf("the restart raised the generation by %d, want no more than the claims", got)
	}
	for _, l := range p.syncs() {
		if *l.Written != 0 {
			t.Errorf("the restart wrote: %s", l.Text)
		}
	}
	p.stop() // an orphan again, as it was
	if diff := cmp.Diff(before, listing()); diff != "" {
		t.Errorf("the ruleset after a restart (-want +got):\n%s", diff)
	}

	publish("web-3")
	p = n.startProxy()
	p.until("what has changed meanwhile is there", func() error {
		return everywhere(func(protocol string, family ip.Family) error {
			return n.reaches(client, protocol, address(web, protocol, family), "web-1", "web-2", "web-3")
		})
	})
	n.must(goOn())

	p.kill()
	n.must(goOn())
	p = n.startProxy()
	n.must(goOn())
	if first := p.syncs()[0]; *first.Written != 0 {
		t.Errorf("the start after a kill wrote: %s", first.Text)
	}
}

// TestAPIServerRestart takes the API server away and brings it back. The slices
// are the test's own: the controllers take their time.
func TestAPIServerRestart(t *testing.T) {
	n := newNodeOf(t, ownControlPlane(t), "restarted")
	client := n.addClient()
	web := n.create(service("web", ""))
	for _, a := range n.addServer("web-1").Addrs {
		n.publish(slice(sliceName("web-1", a), web, a))
	}
	p := n.startProxy()
	reached := func(want ...string) func() error {
		return func() error {
			return everywhere(func(protocol string, family ip.Family) error {
				return n.reaches(client, protocol, address(web, protocol, family), want...)
			})
		}
	}
	p.until("the pod serves", reached("web-1"))
	talk := n.converse(client, address(web, testnet.TCP, ip.V4).String())

	at := p.Mark()
	n.plane.cluster.StopAPIServer()
	n.startAPIServerAtEnd()
	p.awaitText(at, "a request to the API server failed", "trying again") // a list, if the watch was too young
	n.must(talk.goesOn(), reached("web-1")())
	n.must(n.plane.cluster.StartAPIServer(n.ctx))
	n.must(talk.goesOn(), reached("web-1")())

	back := time.Now()
	for _, a := range n.addServer("web-2").Addrs {
		n.publish(slice(sliceName("web-2", a), web, a))
	}
	p.until("a pod that came after the API server", reached("web-1", "web-2"))
	t.Logf("what came after the API server was back was in force %v later", time.Since(back).Round(time.Millisecond))
	n.must(talk.goesOn())
}

func sliceName(pod string, a netip.Addr) string {
	if a.Is6() {
		return pod + "-v6"
	}
	return pod + "-v4"
}

// syncs are the lines about syncs so far.
func (p *process) syncs() []line {
	var syncs []line
	lines, _ := p.Logged(0)
	for _, l := range lines {
		if l.Msg == "synced" && l.Written != nil {
			syncs = append(syncs, l)
		}
	}
	return syncs
}
