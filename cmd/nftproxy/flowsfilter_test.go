package main

import (
	"bytes"
	"encoding/json"
	"fmt"
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
