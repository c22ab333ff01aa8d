package scenario_test

import (
	"testing"

	"nftproxy/test/scenario"
)

func TestFlowText(t *testing.T) {
	for _, line := range []string{
		"pod 10.180.0.1 -> 172.30.0.41:80/tcp = 10.180.0.1:80 masqueraded | 10.180.1.2:80",
		"node 2001:db8::1 -> [fd00:172:30::41]:80/udp = sticky [fd00:10:180::1]:80",
		"pod 10.180.0.1 -> 172.30.0.41:80/tcp = one of 10.180.0.1:80 | 10.180.1.2:80",
		"outside 203.0.113.2:4000 -> 192.168.0.2:30041/sctp = dropped",
		"pod 10.180.0.1 -> 172.30.0.41/icmp = untouched",
		"outside 203.0.113.2 -> 192.168.0.2:30099/http = 503 ns/web weight 0",
		"outside 203.0.113.2 -> [2001:db8::1]:30099/http = refused",
	} {
		f, err := scenario.ParseFlow(line + " # why")
		if err != nil || f.String() != line || f.Why != "why" {
			t.Errorf("%s: read as %s because of %q, error %v", line, f, f.Why, err)
		}
	}
}

func TestFlowErrors(t *testing.T) {
	for _, line := range []string{
		"",
		"pod 10.180.0.1 -> 172.30.0.41:80/tcp",
		"elsewhere 10.180.0.1 -> 172.30.0.41:80/tcp = dropped",
		"pod 10.180.0.1 -> 172.30.0.41:80/quic = dropped",
		"pod 10.180.0.1 -> 172.30.0.41:80/icmp = dropped",
		"pod 10.180.0.1 -> 172.30.0.41:80/tcp = 10.180.0.1",
		"pod 10.180.0.1 -> 172.30.0.41:80/tcp = 200 ns/web weight 1",
		"pod 10.180.0.1 -> 172.30.0.41:80/http = 10.180.0.1:80",
		"pod 10.180.0.1 -> 172.30.0.41:80/http = untouched",
		"pod 10.180.0.1 -> 172.30.0.41:80/http = 200 ns/web",
		"pod 10.180.0.1 -> 172.30.0.41:80/http = 200 ns/web weight 1 and more",
		"pod 10.180.0.1 -> 172.30.0.41:80/http = 200",
	} {
		if f, err := scenario.ParseFlow(line); err == nil {
			t.Errorf("%s: read as %s", line, f)
		}
	}
}
