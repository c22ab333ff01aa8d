package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"nftproxy/model/service"
)

// TestChartFlags: the schema of the chart takes the flags of run in extraArgs, and no others, and of time-outs for DNS
// those that the flag takes. With -update it has them.
func TestChartFlags(t *testing.T) {
	const path = "../../deploy/helm/values.schema.json"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	newRunCommand().Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	slices.Sort(names)
	at := regexp.MustCompile(`("extraArgs": \{\s*"type": "array",\s*"items": \{\s*"type": "string",\s*"pattern": ")[^"]*`)
	if len(at.FindAll(text, -1)) != 1 {
		t.Fatalf("%s has no pattern of extraArgs", path)
	}
	want := at.ReplaceAllString(string(text), "${1}^--("+strings.Join(names, "|")+")(=.*)?$$")
	dns := regexp.MustCompile(`("dnsUDPTimeouts": \{\s*"type": "string",\s*"pattern": ")[^"]*`)
	if len(dns.FindAllString(want, -1)) != 1 {
		t.Fatalf("%s has no pattern of dnsUDPTimeouts", path)
	}
	want = dns.ReplaceAllString(want, "${1}^("+strings.Join(dnsTimeouts(), "|")+")$$")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("%s does not have the flags of run: go test ./cmd/nftproxy -run TestChartFlags -update", path)
	}
}

// dnsTimeouts are what --nftproxy-dns-udp-timeouts takes, as the documentation writes them.
func dnsTimeouts() []string {
	list := []string{timeoutsOff}
	for _, unreplied := range service.UnrepliedTimeouts() {
		for _, replied := range service.RepliedTimeouts() {
			name := service.Timeouts{Protocol: service.UDP, Unreplied: unreplied, Replied: replied}.String()
			value := strings.Replace(strings.TrimPrefix(name, "udp-"), "-", ",", 1)
			if _, err := parseDNSTimeouts(value); err == nil {
				list = append(list, value)
			}
		}
	}
	return list
}
