package servicetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// party is a client or a server: a pod, or this process if pod is nil.
type party struct {
	pod  *corev1.Pod
	node string
}

func (p party) String() string {
	switch {
	case p.pod == nil:
		return "outside"
	case p.pod.Spec.HostNetwork:
		return "node " + p.node
	}
	return fmt.Sprintf("pod %s on %s", p.pod.Name, p.node)
}

// reaches says whether the party has an address of the family of an address, with a port or without. Of a pod on the
// host's network the addresses are those of its node.
func (p party) reaches(address string) bool {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	to, err := netip.ParseAddr(address)
	if err != nil || p.pod == nil {
		return true
	}
	for _, ip := range p.pod.Status.PodIPs {
		if own, err := netip.ParseAddr(ip.IP); err == nil && own.Is4() == to.Is4() {
			return true
		}
	}
	return false
}

// The scripts of clients. Their arguments are the number of tries, the address with its port, and what to ask or the
// protocol. Each try is a line that parseTries reads. The first failure is the last try: it is enough to judge. A
// datagram may get lost, so UDP has two.
const (
	tcpScript = `tries=0
while [ $tries -lt "$1" ]; do
  tries=$((tries + 1))
  answer=$(curl -q -g -s -f --noproxy '*' --connect-timeout 3 --max-time 4 --max-filesize 1000 \
    -w '\n%{http_code} %{time_connect}' "http://$2/$3" 2>/dev/null)
  code=$?
  echo curl $code $answer
  [ $code = 0 ] || break
done`
	connectScript = `tries=0
while [ $tries -lt "$1" ]; do
  tries=$((tries + 1))
  again=$3
  until why=$(/agnhost connect "--protocol=$3" --timeout=3s "$2" 2>&1); do
    [ "$again" = udp ] || { echo connect $why; break 2; }
    again=
  done
  echo connect
done`
	// sctpScript says whether the node has loaded SCTP. To try it would have the kernel load it.
	sctpScript = `if [ -d /proc/net/sctp ]; then echo yes; else echo no; fi`
	// readyScript fails in an image that lacks what the others need.
	readyScript = `command -v curl >/dev/null && command -v sleep >/dev/null && [ -x /agnhost ]`
)

// try connects as often as the check says.
func (p party) try(ctx context.Context, o *Options, c *check) ([]try, error) {
	path := cmp.Or(c.to.path, "hostname")
	if p.pod == nil {
		return tryHere(ctx, c.to, path, c.tries), ctx.Err()
	}
	script, last := tcpScript, path
	if c.to.protocol != tcp {
		script, last = connectScript, c.to.protocol
	}
	out, err := o.Run(ctx, p.pod, container, "/bin/sh", "-c", script, "sh", strconv.Itoa(c.tries), c.to.address, last)
	return parseTries(string(out)), err
}

// The exit statuses of curl that have a word of ours.
const (
	curlNoName  = "6"
	curlNoWay   = "7" // refused, or an ICMP message
	curlTimeout = "28"
	curlStatus  = "22" // of HTTP, 400 or more
)

// parseTries reads lines of "curl STATUS [ANSWER] HTTP-STATUS SECONDS", where SECONDS is 0 without a connection, and of
// "connect [WORD: ERROR]", which is without a word if there was an answer.
func parseTries(text string) (tries []try) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) >= 4 && words[0] == "curl":
			tries = append(tries, curlTry(words[1], words[2:]))
		case len(words) == 1 && words[0] == "connect":
			tries = append(tries, try{})
		case len(words) > 1 && words[0] == "connect":
			word, _, _ := strings.Cut(words[1], ":")
			if word != refusedWord && word != timeoutWord {
				word = failureOf(errors.New(short(strings.Join(words[1:], " "))))
			}
			tries = append(tries, try{failure: word})
		}
	}
	return tries
}

func curlTry(status string, words []string) try {
	answer, httpStatus := words[:len(words)-2], words[len(words)-2]
	seconds, err := strconv.ParseFloat(words[len(words)-1], 64)
	connected := err == nil && seconds > 0
	switch {
	case status == "0":
		return try{answer: hostOf(short(strings.Join(answer, " ")))}
	case status == curlStatus:
		return try{failure: "HTTP status " + httpStatus}
	case status == curlNoName:
		return try{failure: "the name is not known"}
	case status == curlNoWay:
		return try{failure: refusedWord}
	case status == curlTimeout && !connected:
		return try{failure: timeoutWord}
	case status == curlTimeout:
		return try{failure: "connected, but without an answer"}
	}
	return try{failure: "curl ended with exit status " + status}
}

// short bounds what somebody else has written.
func short(s string) string {
	const most = 100
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// hostOf takes the port from an answer that is an address with a port.
func hostOf(answer string) string {
	if at, err := netip.ParseAddrPort(answer); err == nil {
		return at.Addr().Unmap().String()
	}
	return answer
}

// tryPatience is how long this process waits for an answer, as the scripts do.
const tryPatience = 3 * time.Second

// tryHere connects from this process.
func tryHere(ctx context.Context, to target, path string, tries int) (all []try) {
	for failed := false; len(all) < tries && !failed; {
		ctx, cancel := context.WithTimeout(ctx, tryPatience)
		ask := askTCP
		if to.protocol != tcp {
			ask = askUDP
		}
		answer, err := ask(ctx, to.address, path)
		cancel()
		t := try{answer: answer}
		if err != nil {
			failed = true
			t = try{failure: failureOf(err)}
		}
		all = append(all, t)
	}
	return all
}

// failureOf is the word of agnhost connect for an error.
func failureOf(err error) string {
	text := err.Error()
	switch timeout, is := err.(interface{ Timeout() bool }); {
	case strings.Contains(text, "refused"), strings.Contains(text, "unreachable"), strings.Contains(text, "no route"):
		return refusedWord
	case is && timeout.Timeout():
		return timeoutWord
	}
	return text
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 4 << 10

func askTCP(ctx context.Context, address, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/"+path, nil)
	if err != nil {
		return "", err
	}
	// Each request has a connection of its own, and no proxy of the environment takes it.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("HTTP status %d", response.StatusCode)
	}
	return hostOf(short(strings.TrimSpace(string(text)))), err
}

func askUDP(ctx context.Context, address, request string) (string, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, has := ctx.Deadline(); has {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := conn.Write([]byte(request)); err != nil {
		return "", err
	}
	answer := make([]byte, maxAnswer)
	n, err := conn.Read(answer)
	return short(strings.TrimSpace(string(answer[:n]))), err
}
