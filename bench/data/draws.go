package data

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"nftproxy/bench/result"
	"nftproxy/test/lib/controlplane"
)

// clientNet has the clients of distributions, from its first address on. They are all in one pod.
func clientNet() netip.Prefix { return netip.MustParsePrefix("10.64.0.0/10") }

// distribution counts which endpoints get real connections, and compares with what they should get by chi-squared.
func (c Choices) distribution(ctx context.Context) ([]Figure, error) {
	var figures []Figure
	for _, d := range drawings() {
		if d.name == "random, "+again {
			continue
		}
		endpoints := endpointIPs()
		if len(d.weights) > 0 {
			endpoints = endpoints[:len(d.weights)]
		}
		fmt.Fprintf(c.Log, "%s connections, %s\n", result.Count(c.Draws), d.name)
		list, err := c.distributed(ctx, d, endpoints)
		if err != nil {
			return nil, fmt.Errorf("distribution, %s: %w", d.name, err)
		}
		figures = append(figures, list...)
	}
	return figures, nil
}

func (c Choices) distributed(ctx context.Context, d drawing, endpoints []netip.Addr) (figures []Figure, err error) {
	s, err := newDrawnSite(1, d, endpoints)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.inviteClients(); err != nil {
		return nil, err
	}
	counts, err := s.draw(ctx, c.Draws, d.balance == "flow")
	if err != nil {
		return nil, err
	}
	shares := s.shares(d, endpoints)
	chi, least, most, all := 0.0, math.Inf(1), 0.0, 0
	for _, a := range sortedAddrs(shares) {
		want := float64(c.Draws) * shares[a]
		off := float64(counts[a]) - want
		chi += off * off / want
		least, most, all = min(least, float64(counts[a])/want), max(most, float64(counts[a])/want), all+counts[a]
	}
	if all != c.Draws {
		return nil, fmt.Errorf("%d of %d connections reached the endpoints", all, c.Draws)
	}
	freedom := len(shares) - 1
	question := fmt.Sprintf("%s connections, chi-squared with %d degrees of freedom", result.Count(c.Draws), freedom)
	return []Figure{
		{Question: question, Case: d.name, Services: 1, Value: chi},
		{Question: "... chance of as much or more", Case: d.name, Services: 1, Value: chiTail(chi, freedom)},
		{Question: "... of the endpoint with the fewest connections", Case: d.name, Services: 1, Value: least * 100, Unit: "% of its share"},
		{Question: "... of the endpoint with the most", Case: d.name, Services: 1, Value: most * 100, Unit: "% of its share"},
	}, nil
}

// chiTail is the probability that chi-squared with so many degrees of freedom, 1 or more, is at least x: the regularized
// gamma function Q(freedom/2, x/2), by its recurrence from Q(1/2, y) = erfc(sqrt(y)) or Q(1, y) = exp(-y).
func chiTail(x float64, freedom int) float64 {
	y := x / 2
	a, q := 1.0, math.Exp(-y)
	if freedom%2 == 1 {
		a, q = 0.5, math.Erfc(math.Sqrt(y))
	}
	for ; 2*a < float64(freedom); a++ {
		gamma, _ := math.Lgamma(a + 1)
		if y > 0 {
			q += math.Exp(a*math.Log(y) - y - gamma)
		}
	}
	return q
}

// inviteClients gives the pod all addresses of clientNet: an address with a prefix on lo makes all of the prefix local.
func (s *drawnSite) inviteClients() error {
	if err := s.pod.NS.AddAddr("lo", clientNet()); err != nil {
		return err
	}
	return s.topology.Node.AddRoute(clientNet(), s.pod.Addrs.V4())
}

// draw connects so many times, each time as another client: from another address, or by flows from another port or
// address. It returns the number of connections of each endpoint.
func (s *drawnSite) draw(ctx context.Context, n int, flows bool) (map[netip.Addr]int, error) {
	// A chunk fits into the listener's backlog, and into connection tracking.
	const chunk = 50_000
	counts := map[netip.Addr]int{}
	for first := 0; first < n; first += chunk {
		err := s.pod.NS.Do(func() error {
			c := newClient(s.to)
			for i := first; i < min(n, first+chunk) && ctx.Err() == nil; i++ {
				if err := c.onceFrom(source(i, flows)); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
		if err != nil {
			return nil, err
		}
		some, err := s.server.endpoints()
		if err != nil {
			return nil, err
		}
		for a, k := range some {
			counts[a] += k
		}
		if err := s.topology.Node.FlushConntrack(); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// source is where the i-th connection comes from. Port 0 is any.
func source(i int, flows bool) netip.AddrPort {
	const ports, firstPort = 60_000, 1024
	first := clientNet().Addr().Next().String()
	if flows {
		return netip.AddrPortFrom(controlplane.Address(first, i/ports), uint16(firstPort+i%ports))
	}
	return netip.AddrPortFrom(controlplane.Address(first, i), 0)
}

// onceFrom is once, from an address and port of the namespace.
func (c *client) onceFrom(from netip.AddrPort) error {
	fd, err := c.socket()
	if err != nil {
		return err
	}
	err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrInet4{Port: int(from.Port()), Addr: from.Addr().As4()}))
	if err == nil {
		_, err = c.connect(fd)
	}
	if err != nil {
		err = fmt.Errorf("connect from %v: %w", from, err)
	}
	return errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
}
