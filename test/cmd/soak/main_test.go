package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nftproxy/test/cmd/soak/script"
	"nftproxy/test/lib/controlplane"
)

// everyEvent is the script that CI plays.
const everyEvent = "testdata/every-event.soak"

// TestEveryEvent: the script has each event, and each way to tamper, but for upgrades, whose
// older release has to be built.
func TestEveryEvent(t *testing.T) {
	text, err := os.ReadFile(everyEvent)
	if err != nil {
		t.Fatal(err)
	}
	events, err := script.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{script.Older: true}
	for _, e := range events {
		have[e.Verb] = true
		have[e.Get("how")] = true
	}
	for _, word := range slices.Concat(script.Verbs(), script.WaysToTamper()) {
		if !have[word] {
			t.Errorf("%s has no %q", everyEvent, word)
		}
	}
}

// TestFindsWhatIsWrong plays a short script with proxies that do something wrong on purpose.
func TestFindsWhatIsWrong(t *testing.T) {
	controlplane.Require(t)
	dir := t.TempDir()
	nftproxy := filepath.Join(dir, "nftproxy")
	build := exec.Command("go", "build", "-o", nftproxy, "./cmd/nftproxy")
	build.Dir, build.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	file := filepath.Join(dir, "short.soak")
	text := "world owned=yes counters=none masquerade-all=no clean-established=no node-ports=primary local=ClusterCIDR\n" +
		"service name=s1 at=1 type=ClusterIP families=46 protocols=tcp,udp\nendpoints name=s1 " +
		"pods=a,b\nstart\nsettle\nkill\nstart\nsettle\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	play := func(wrapper string) (string, error) {
		binary := filepath.Join(dir, "wrapper")
		if err := os.WriteFile(binary, fmt.Appendf(nil, "#!/bin/sh\n%s\n", strings.ReplaceAll(wrapper, "NFTPROXY", nftproxy)),
			0o755); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := command(t.Context(), []string{"--script=" + file, "--nftproxy=" + binary,
			"--dir=" + filepath.Join(dir, "runs")}, &out)
		return out.String(), err
	}
	for _, c := range []struct{ name, wrapper, want string }{
		{"nothing", `exec NFTPROXY "$@"`, ""},
		{"pods see another client", `exec NFTPROXY "$@" --masquerade-all=true`, "went wrong"},
		{"the process ends by itself", `NFTPROXY "$@" & sleep 1; kill $!; exit 1`, "ended by itself"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := play(c.wrapper)
			broken := new(failure)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("%v\n%s", err, out)
			case c.want != "" && (!errors.As(err, &broken) || !strings.Contains(broken.what, c.want)):
				t.Errorf("the run ended with %v, want %q\n%s", err, c.want, out)
			}
			kept, err := filepath.Glob(filepath.Join(dir, "runs", "failed-*.soak"))
			if err != nil || (len(kept) > 0) != (c.want != "") {
				t.Errorf("kept %v (%v)", kept, err)
			}
			for _, name := range kept {
				if err := os.Remove(name); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
