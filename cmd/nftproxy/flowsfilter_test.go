package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	daemonflows "nftproxy/daemon/flows"
	modelflows "nftproxy/model/flows"
	"nftproxy/model/service"
)

// TestFlowsFilter: each flag of nftproxy flows selects by its own field.
func TestFlowsFilter(t *testing.T) {
	f := modelflows.Flow{Service: "shop/cart", Client: netip.MustParseAddrPort("10.1.0.5:4000"),
		Address: netip.MustParseAddrPort("10.96.0.1:80"), Endpoint: netip.MustParseAddrPort("10.2.0.7:8080"),
		Result: modelflows.Refused}
	for _, c := range []struct {
		o     flowsOptions
		names []string
		want  bool
	}{
		{flowsOptions{}, nil, true},
		{flowsOptions{}, []string{"cart"}, true},
		{flowsOptions{}, []string{"shop/other"}, false},
		{flowsOptions{nameOptions: nameOptions{namespace: "shop"}}, nil, true},
		{flowsOptions{nameOptions: nameOptions{service: "shop/cart"}}, nil, true},
		{flowsOptions{from: "10.1.0.5"}, nil, true},
		{flowsOptions{from: "10.1.0.0/24"}, nil, true},
		{flowsOptions{from: "10.2.0.7"}, nil, false},
		{flowsOptions{to: "10.2.0.7"}, nil, true},
		{flowsOptions{to: "10.96.0.0/16"}, nil, true},
		{flowsOptions{to: "10.1.0.5"}, nil, false},
		{flowsOptions{result: "refused"}, nil, true},
		{flowsOptions{result: "answered"}, nil, false},
	} {
		shown, err := c.o.filter(c.names)
		if err != nil {
			t.Fatalf("%+v %q: %v", c.o, c.names, err)
		}
		if got := shown(&f); got != c.want {
			t.Errorf("%+v %q: shown %v, want %v", c.o, c.names, got, c.want)
		}
	}
	for _, o := range []flowsOptions{{from: "x"}, {to: "10.0.0.0/99"}, {result: "no"}, {last: -1},
		{since: -1}} {
		if _, err := o.filter(nil); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

// TestWriteFollowed: the text has what the help says.
func TestWriteFollowed(t *testing.T) {
	answer := 0.0012
	var b bytes.Buffer
	err := writeFollowed(&b, []modelflows.Flow{{Service: "shop/cart", Port: "http", Protocol: "tcp",
		Way: modelflows.ByNodePort, Client: netip.MustParseAddrPort("10.1.0.5:4000"),
		Endpoint: netip.MustParseAddrPort("10.2.0.7:8080"), Result: modelflows.Answered, AnswerSeconds: &answer, Ended: true,
		Seconds: 3, BytesFrom: 10, BytesTo: 20, Weight: 16},
		{Service: "shop/cart", Protocol: "tcp", Result: modelflows.Refused, Cause: "unknown-port"}}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"shop/cart:http/tcp  node-port  10.2.0.7:8080  answered", "1ms  ", "3s  ", "  10  ",
		" 16\n", "shop/cart:-/tcp", "refused unknown-port"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
}

// TestFlowsOfAnswer: --since leaves out what ended of what began before, and a node that follows nothing is an error,
// after what it remembers.
func TestFlowsOfAnswer(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	answer := daemonflows.Answer{Node: "node-1", Time: now}
	for i, ago := range []time.Duration{time.Hour, time.Minute, time.Hour, time.Second} {
		answer.Flows = append(answer.Flows, modelflows.Flow{Seq: uint64(i + 1), Begin: now.Add(-ago), Ended: i != 2,
			Client: netip.MustParseAddrPort("10.1.0.5:4000"), Service: service.Name(fmt.Sprintf("shop/s%d", i+1))})
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	for _, c := range []struct {
		o            flowsOptions
		silent, want string
	}{
		{flowsOptions{}, "", "s1 s2 s3 s4"},
		{flowsOptions{since: time.Minute}, "", "s3 s4"},
		{flowsOptions{since: time.Minute, last: 1}, "", "s4"},
		{flowsOptions{last: 1}, "the group is taken", "s4"},
		{flowsOptions{last: 1, follow: true}, "the group is taken", "s4"},
	} {
		answer.Error = c.silent
		var b bytes.Buffer
		err := c.o.run(t.Context(), &b, flowsSource{server.URL, nil, func(*modelflows.Flow) bool { return true }})
		if (err != nil) != (c.silent != "") || err != nil && !strings.Contains(err.Error(), c.silent) {
			t.Errorf("%+v: %v", c.o, err)
		}
		var got []string
		for _, row := range strings.Split(strings.TrimSpace(b.String()), "\n")[1:] {
			name, _, _ := strings.Cut(strings.Fields(row)[2], ":")
			got = append(got, strings.TrimPrefix(name, "shop/"))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%+v shows %s, want %s", c.o, s, c.want)
		}
	}
}

// TestFlowsGzip: --gzip prints the same, and for a full memory less than an eighth of it.
func TestFlowsGzip(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	answer := daemonflows.Answer{Node: "node-1", Time: now}
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 2 * daemonflows.Most {
		seconds := rng.ExpFloat64() / 1000
		address := func(port uint16) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(rng.IntN(16)), byte(rng.IntN(110))}), port)
		}
		name := rng.IntN(30)
		answer.Flows = append(answer.Flows, modelflows.Flow{Seq: uint64(2 * i), ID: uint64(i),
			Begin: now.Add(-time.Duration(rng.Int64N(int64(time.Minute)))), Protocol: "TCP",
			Client: address(uint16(32_768 + rng.IntN(28_000))), Service: service.Name(fmt.Sprintf("shop/s%d", name)),
			Port: "http", Way: modelflows.ByClusterIP, Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0,
				byte(name)}), 80), Endpoint: address(8080), Result: modelflows.Answered, AnswerSeconds: &seconds, Ended: true,
			Seconds: rng.Float64(), PacketsFrom: 5 + rng.Uint64N(10), BytesFrom: rng.Uint64N(2000),
			PacketsTo: 5 + rng.Uint64N(10), BytesTo: rng.Uint64N(20_000), Weight: 256})
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	run := func(flags ...string) []byte {
		var b bytes.Buffer
		cmd := newFlowsCommand()
		cmd.SetOut(&b)
		cmd.SetArgs(append([]string{"--address", strings.TrimPrefix(server.URL, "http://"), "--last", "0", "-o", "json"},
			flags...))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	plain, small := run(), run("--gzip")
	z, err := gzip.NewReader(bytes.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil || !bytes.Equal(text, plain) {
		t.Errorf("%d bytes become %d: %v", len(plain), len(text), err)
	}
	if t.Logf("%d bytes as %d", len(plain), len(small)); len(small) > len(plain)/8 {
		t.Errorf("%d bytes are still %d", len(plain), len(small))
	}
}
