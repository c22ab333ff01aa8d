package main

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/look/preflight"
)

func findings() []preflight.Finding {
	return []preflight.Finding{
		{Probe: "rights", Level: preflight.Green, Found: "CAP_NET_ADMIN"},
		{Probe: "ports: health", Level: preflight.Yellow, Found: "0.0.0.0:10256 is in use", Do: "choose another address"},
		{Probe: "kernel: Services of IPv4", Level: preflight.Red, Found: "no such file or directory", Do: "use another kernel"},
	}
}

// TestCheckOutput: what check prints for people and for programs, and its exit status.
func TestCheckOutput(t *testing.T) {
	for _, c := range []struct {
		findings     []preflight.Finding
		output, file string
		want         error
	}{
		{findings(), outputText, "testdata/check/red.txt", statusRed},
		{findings(), outputJSON, "testdata/check/red.json", statusRed},
		{findings()[:2], outputText, "testdata/check/yellow.txt", statusYellow},
		{findings()[:1], outputText, "testdata/check/green.txt", nil},
	} {
		var out bytes.Buffer
		if err := writeCheck(&out, c.findings, c.output); !errors.Is(err, c.want) {
			t.Errorf("%s: exit status %v, want %v", c.file, err, c.want)
		}
		want, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.file, diff)
		}
	}
}
