package main

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	modelflows "nftproxy/model/flows"
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
	for _, o := range []flowsOptions{{from: "x"}, {to: "10.0.0.0/99"}, {result: "no"}, {last: -1}} {
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
