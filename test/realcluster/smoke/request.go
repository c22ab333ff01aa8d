package smoke

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
)

// requestTimeout bounds a request. TCP sends a lost packet again several times in
// it, so a lost packet is no failed request: load counts those that were slow.
const requestTimeout = 10 * time.Second

// get makes a request on a new connection from outside of the nodes. The error
// says whether there was a connection.
func (f *fixture) get(ctx context.Context, to netip.AddrPort, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	conn, err := f.Outside.Dial(ctx, "tcp", to.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // it ends reads and writes
	defer stop()
	answer, err := exchange(ctx, conn, "http://"+to.String()+path)
	if err != nil {
		return "", fmt.Errorf("connected from %v: %w", conn.LocalAddr(), err)
	}
	return answer, nil
}

// exchange makes the only request of a connection.
func exchange(ctx context.Context, conn net.Conn, address string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	request.Close = true
	if err := request.Write(conn); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), request)
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

// webPort is the port of client pods.
const webPort = 8080

// ask has a client pod ask a server for its host name, some times with a
// connection each, and returns the answers.
func (f *fixture) ask(ctx context.Context, client netip.Addr, protocol, host string, port uint16, times int) ([]string, error) {
	query := url.Values{
		"request": {"hostname"}, "protocol": {protocol}, "host": {host},
		"port": {strconv.Itoa(int(port))}, "tries": {strconv.Itoa(times)},
	}
	body, err := f.get(ctx, netip.AddrPortFrom(client, webPort), "/dial?"+query.Encode())
	if err != nil {
		return nil, fmt.Errorf("%v asks %s: %w", client, host, err)
	}
	var answer struct{ Responses, Errors []string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return nil, fmt.Errorf("%v asks %s: %w: %s", client, host, err, body)
	}
	if len(answer.Errors) > 0 || len(answer.Responses) != times {
		return nil, fmt.Errorf("%v asks %s %d times: %d answers, errors %q", client, host, times, len(answer.Responses), answer.Errors)
	}
	return answer.Responses, nil
}
