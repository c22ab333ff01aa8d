package workload

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"nftproxy/test/lib/testnet"
)

// requestTimeout bounds a request. A busy computer is late by many seconds. TCP sends
// a lost packet again several times in this time, so a lost packet is no failed
// request: load counts those that were slow.
const requestTimeout = 30 * time.Second

// Get makes a request on a new connection from outside of the nodes. The error
// says whether there was a connection.
func (w *Web) Get(ctx context.Context, to netip.AddrPort, path string) (string, error) {
	return w.GetFrom(ctx, w.Outside, to, path)
}

// GetFrom makes a request on a new connection from a network, such as a node's.
func (w *Web) GetFrom(ctx context.Context, from *testnet.Namespace, to netip.AddrPort, path string) (string, error) {
	return get(ctx, from, to, path)
}

// get makes a request on a new connection from a network.
func get(ctx context.Context, from *testnet.Namespace, to netip.AddrPort, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	c, err := dial(ctx, from, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.get(ctx, path, true)
}

// connection is an HTTP connection that may stay open.
type connection struct {
	net.Conn
	to      netip.AddrPort
	answers *bufio.Reader
}

func dial(ctx context.Context, from *testnet.Namespace, to netip.AddrPort) (*connection, error) {
	conn, err := from.Dial(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return &connection{conn, to, bufio.NewReader(conn)}, nil
}

// get makes a request, the last one of the connection or not.
func (c *connection) get(ctx context.Context, path string, last bool) (string, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // it ends reads and writes
	defer stop()
	answer, err := c.exchange(ctx, "http://"+c.to.String()+path, last)
	if err != nil {
		return "", fmt.Errorf("connected from %v: %w", c.LocalAddr(), err)
	}
	return answer, nil
}

func (c *connection) exchange(ctx context.Context, address string, last bool) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	request.Close = last
	if err := request.Write(c); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(c.answers, request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}

// podPort is the port of client pods, and of those of web for HTTP.
const podPort = 8080

// Ask has a client pod ask a server for its host name, some times with a
// connection each, and returns the answers.
func (w *Web) Ask(ctx context.Context, client netip.Addr, protocol, host string, port uint16,
	times int) ([]string, error) {
	return w.askFor(ctx, "hostname", client, protocol, host, port, times)
}

// askFor is Ask for something else that the server knows, such as clientip.
func (w *Web) askFor(ctx context.Context, what string, client netip.Addr, protocol, host string, port uint16,
	times int) ([]string, error) {
	query := url.Values{
		"request": {what}, "protocol": {protocol}, "host": {host},
		"port": {strconv.Itoa(int(port))}, "tries": {strconv.Itoa(times)},
	}
	body, err := w.Get(ctx, netip.AddrPortFrom(client, podPort), "/dial?"+query.Encode())
	if err != nil {
		return nil, fmt.Errorf("%v asks %s: %w", client, host, err)
	}
	var answer struct{ Responses, Errors []string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return nil, fmt.Errorf("%v asks %s: %w: %s", client, host, err, body)
	}
	if len(answer.Errors) > 0 || len(answer.Responses) != times {
		return nil, fmt.Errorf("%v asks %s %d times: %d answers, errors %q", client, host, times, len(answer.Responses),
			answer.Errors)
	}
	return answer.Responses, nil
}
