package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"nftproxy/test/lib/testnet"
)

// askAgain is the time between two questions to a health check node port.
const askAgain = 10 * time.Millisecond

// checkAnswer asks until the answer is the one wanted. A proxy's servers follow
// its rules a moment later, and nothing tells when: load balancers ask again and
// again, too.
func (s *Stage) checkAnswer(ctx context.Context, f Flow) (client netip.AddrPort, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		var got Observed
		if got, client, err = s.ask(ctx, f, patience); err == nil {
			err = s.wanted(f, got)
		}
		if err == nil {
			return client, nil
		}
		select {
		case <-ctx.Done():
			return client, err
		case <-time.After(askAgain):
		}
	}
}

// get asks a health check node port once.
func get(ctx context.Context, ns *testnet.Namespace, from, to netip.AddrPort, timeout time.Duration) (Observed, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		return ns.DialFrom(ctx, network, from.String(), address)
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String()+"/", nil)
	if err != nil {
		return Observed{}, err
	}
	response, err := client.Do(request)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Observed{Outcome: Outcome{Fate: Refused}}, nil
	case errors.Is(err, context.DeadlineExceeded):
		return Observed{Outcome: Outcome{Fate: Dropped}}, nil
	case err != nil:
		return Observed{}, err
	}
	defer response.Body.Close()
	answer, err := ReadAnswer(response)
	return Observed{Outcome: Outcome{Fate: Answered, Answer: answer}}, err
}

// ReadAnswer reads the answer of a health check node port. It returns an error if the
// answer differs in any way from kube-proxy v1.37's form, or if the proxy says that it
// is not well.
func ReadAnswer(r *http.Response) (Answer, error) {
	a := Answer{Code: r.StatusCode}
	for name, want := range map[string]string{"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"} {
		if got := r.Header.Get(name); got != want {
			return a, fmt.Errorf("answer with %s %q, want %q", name, got, want)
		}
	}
	var err error
	if a.Weight, err = strconv.Atoi(r.Header.Get("X-Load-Balancing-Endpoint-Weight")); err != nil {
		return a, fmt.Errorf("answer's weight: %w", err)
	}
	var body struct {
		Service             struct{ Namespace, Name string }
		LocalEndpoints      int
		ServiceProxyHealthy bool
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return a, fmt.Errorf("answer's body: %w", err)
	}
	a.Service = body.Service.Namespace + "/" + body.Service.Name
	switch {
	case body.LocalEndpoints != a.Weight:
		return a, fmt.Errorf("%s, but %d local endpoints", a, body.LocalEndpoints)
	case !body.ServiceProxyHealthy:
		return a, fmt.Errorf("%s, but the proxy is not healthy", a)
	}
	return a, nil
}
