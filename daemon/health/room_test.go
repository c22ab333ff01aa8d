package health_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"nftproxy/daemon/health"
)

// crowd is a listener to which the test hands connections, and the names of those that ended.
type crowd struct {
	next   chan net.Conn
	closed []string // by the bound
	net.Listener
}

func (c *crowd) Accept() (net.Conn, error) {
	select {
	case n := <-c.next:
		return n, nil
	default:
		return nil, net.ErrClosed
	}
}

func newCrowd(bounds ...*health.Bound) *crowd {
	c := &crowd{next: make(chan net.Conn, 1)}
	c.Listener = health.LimitConnections(&crowd{next: c.next}, func(a net.Addr) {
		c.closed = append(c.closed, a.String())
	}, bounds...)
	return c
}

// enter accepts a connection of a client, or returns nil if it is refused. The port is its name.
func (c *crowd) enter(client string, port int) net.Conn {
	c.next <- from{addr: &net.TCPAddr{IP: net.ParseIP(client), Port: port}}
	accepted, err := c.Listener.Accept()
	if err != nil {
		return nil
	}
	return accepted
}

// TestRoom: who loses a place for a new connection.
func TestRoom(t *testing.T) {
	for _, c := range []struct{ name, steps, lost string }{
		{"the client with most", "1a 1b 1c 2d 3e", "1a"},
		{"not the newcomer with few", "1a 1b 1c 2d 2e", "1a"},
		{"the newcomer with most", "1a 1b 1c 2d 1e", "1e"},
		{"the newcomer with as many as any", "1a 1b 2c 2d 1e", "1e"},
		{"the newcomer's own idle one", "1a 1b 2c 2d 2c- 1b- 1e", "1b"},
		{"the newcomer with as many as it may", "1a 1b 1c 1d", "1d"},
		{"its idle one instead", "1a 1b 1c 1b- 1d", "1b"},
		{"an idle one before a busy one", "1a 1b 1c 2d 1c- 3e", "1c"},
		{"the longest idle one", "1a 1b 1c 2d 1c- 1b- 1a- 3e", "1c"},
		{"a request ends idleness", "1a 1b 1c 2d 1c- 1b- 1c+ 1c- 3e", "1b"},
		{"the oldest request", "1a 1b 1c 2d 1a- 1a+ 3e", "1b"},
		{"of equals the idle one", "1a 2b 3c 4d 3c- 5e", "3c"},
		{"of equals the oldest", "1a 2b 3c 4d 5e", "1a"},
		{"one closed before loses nothing", "1a 1b 1c 2d 1a! 3e 4f", "1b"},
		{"nor does its request count", "1a 1b 1c 2d 1a! 1a- 3e 4f", "1b"},
		{"two in a row", "1a 1b 1c 2d 3e 4f 5g", "1a 1b 1c"},
	} {
		got := play(newCrowd(health.NewBound(4, 3)), strings.Fields(c.steps))
		if got != c.lost {
			t.Errorf("%s: %s: %s lost its place, want %s", c.name, c.steps, got, c.lost)
		}
	}
}

// play makes connections, such as a of client 1, lets them wait (-), ask (+) and end (!), and returns who was
// closed.
func play(c *crowd, steps []string) string {
	open := map[string]net.Conn{}
	for _, s := range steps {
		name := s[:2]
		switch s[2:] {
		case "":
			open[name] = c.enter("192.0.2."+name[:1], int(name[1]))
		case "-":
			health.ConnState(open[name], http.StateIdle)
		case "+":
			health.ConnState(open[name], http.StateActive)
		case "!":
			_ = open[name].Close()
		}
	}
	var lost []string
	for _, a := range c.closed {
		host, port, _ := strings.Cut(strings.TrimPrefix(a, "192.0.2."), ":")
		var n int
		_, _ = fmt.Sscan(port, &n)
		lost = append(lost, host+string(rune(n)))
	}
	return strings.Join(lost, " ")
}

// TestProber: whoever opens a connection now and then has a place, however many others hold at each of many
// listeners and at all of them, and however often they come back.
func TestProber(t *testing.T) {
	const ports, all, client = 64, 128, 32
	common := health.NewBound(4096, 2048)
	var doors []*crowd
	for range ports {
		doors = append(doors, newCrowd(health.NewBound(all, client), common))
	}
	port, probes := 0, 0
	for range 3 {
		for _, d := range doors {
			for i := range 4 * (client + 1) {
				port++
				if c := d.enter(fmt.Sprintf("192.0.2.%d", i%4), port); c != nil && i%2 == 0 {
					health.ConnState(c, http.StateIdle)
				}
			}
			probe := d.enter("192.0.2.9", 1)
			if probe == nil {
				continue
			}
			probes++
			_ = probe.Close()
		}
	}
	if probes != 3*ports {
		t.Errorf("%d of %d probes had a place", probes, 3*ports)
	}
}

// TestRanking: after any changes, the victim is the one that a search of all connections finds.
func TestRanking(t *testing.T) {
	const all, client = 12, 5
	r := rand.New(rand.NewPCG(1, 2))
	c := newCrowd(health.NewBound(all, client))
	var open []*known
	for turn := range 20000 {
		if k := len(open); k > 0 && r.IntN(2) == 0 {
			i := r.IntN(k)
			if r.IntN(8) == 0 {
				_ = open[i].Close()
				open = slices.Delete(open, i, i+1)
				continue
			}
			open[i].idle, open[i].turn = r.IntN(3) == 0, turn
			state := http.StateActive
			if open[i].idle {
				state = http.StateIdle
			}
			health.ConnState(open[i].Conn, state)
			continue
		}
		next := &known{client: fmt.Sprintf("192.0.2.%d", r.IntN(6)), port: turn + 1, turn: turn}
		want := victim(open, next, all, client)
		c.closed = nil
		next.Conn = c.enter(next.client, next.port)
		if got := strings.Join(c.closed, " "); got != want {
			t.Fatalf("turn %d: closed %q, want %q", turn, got, want)
		}
		if next.Conn != nil {
			open = append(open, next)
		}
		open = slices.DeleteFunc(open, func(k *known) bool { return k.String() == want })
	}
}

type known struct {
	net.Conn
	client     string
	port, turn int
	idle       bool
}

func (k *known) String() string { return fmt.Sprintf("%s:%d", k.client, k.port) }

// victim searches all connections for the one to close, "" for none.
func victim(open []*known, next *known, all, client int) string {
	counts := map[string]int{}
	for _, k := range open {
		counts[k.client]++
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	own := counts[next.client]
	if len(open) < all && own < client {
		return ""
	}
	var oldest *known
	for _, k := range open {
		candidate := counts[k.client] == most
		if own == client || own == most {
			candidate = k.client == next.client && k.idle
		}
		if candidate && (oldest == nil || k.idle && !oldest.idle || k.idle == oldest.idle && k.turn < oldest.turn) {
			oldest = k
		}
	}
	if oldest == nil {
		oldest = next
	}
	return oldest.String()
}

// TestTakenTwice: two listeners need the place of the same connection, which has left the bound of both but not yet
// that of its own listener. The second gets another place of the common bound, and the connection is reported once.
func TestTakenTwice(t *testing.T) {
	common := health.NewBound(2, 2)
	one, two := newCrowd(health.NewBound(9, 9), common), newCrowd(health.NewBound(2, 2), common)
	met := false
	meanwhile := func() {
		if !met { // The other listener closes the connection too.
			met = true
			two.enter("192.0.2.3", 30)
		}
	}
	two.next <- closing{from{addr: &net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 10}}, meanwhile}
	if _, err := two.Listener.Accept(); err != nil {
		t.Fatal(err)
	}
	two.enter("192.0.2.1", 11)
	one.enter("192.0.2.2", 20)
	if got, want := two.closed, []string{"192.0.2.1:10", "192.0.2.1:11"}; !slices.Equal(got, want) {
		t.Errorf("closed %q, want %q", got, want)
	}
}

// closing does something when it is closed.
type closing struct {
	from
	then func()
}

func (c closing) Close() error {
	c.then()
	return nil
}

// TestConcurrent: listeners that share a bound lose and leak no place where their connections come, ask and end at
// the same time.
func TestConcurrent(t *testing.T) {
	const all = 20
	common := health.NewBound(all, all)
	var wg sync.WaitGroup
	for id := range 8 {
		wg.Go(func() {
			// closed is called by other listeners too.
			l := &crowd{next: make(chan net.Conn, 1)}
			c := &crowd{next: l.next, Listener: health.LimitConnections(l, func(net.Addr) {}, health.NewBound(6, 4), common)}
			r := rand.New(rand.NewPCG(1, uint64(id)))
			var open []net.Conn
			for i := range 2000 {
				if a := c.enter(fmt.Sprintf("192.0.2.%d", r.IntN(5)), i+1); a != nil {
					open = append(open, a)
				}
				for _, k := range open {
					health.ConnState(k, []http.ConnState{http.StateIdle, http.StateActive}[r.IntN(2)])
				}
				if len(open) > r.IntN(10) {
					_ = open[0].Close()
					open = open[1:]
				}
			}
			for _, k := range open {
				_ = k.Close()
			}
		})
	}
	wg.Wait()
	c := newCrowd(common)
	for i := range all {
		if c.enter("192.0.2.1", i+1) == nil {
			t.Fatalf("connection %d has no place at an empty bound", i)
		}
	}
	if c.enter("192.0.2.1", all+1) != nil {
		t.Error("one more than the bound has a place")
	}
}
