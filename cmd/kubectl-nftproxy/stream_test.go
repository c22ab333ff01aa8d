package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const untilStdinCloses = "--until-stdin-closes"

// TestStreamEndsOnNode: a command that goes on is started so that it ends with its standard input, which is open until
// the plugin ends.
func TestStreamEndsOnNode(t *testing.T) {
	f := newFakeCluster("a")
	started := make(chan []string, 1)
	f.gaveUp = make(chan bool, 1)
	f.run = func(_ string, args []string) (string, int) {
		started <- args
		return "", neverAnswers
	}
	kubeconfig := f.start(t)
	for _, line := range []string{"trace 10.96.0.10:80 --node a -- --packets 3", "top --node a -- --interval 1h"} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan int)
		go func() {
			_, _, code := runPlugin(ctx, append([]string{"--kubeconfig", kubeconfig}, strings.Fields(line)...)...)
			ended <- code
		}()
		args := <-started
		if args[len(args)-1] != untilStdinCloses {
			t.Errorf("%s runs %q", line, args)
		}
		select {
		case <-f.gaveUp:
			t.Errorf("%s: the input is closed while the plugin runs", line)
		case <-time.After(100 * time.Millisecond):
		}
		cancel()
		if stdin := <-f.gaveUp; !stdin {
			t.Errorf("%s: the node's command has no input that could end", line)
		}
		<-ended
	}
}

// TestStreamOnOldNode: a node whose nftproxy does not know how to end with its input runs the command all the same, and
// nothing is said of the flag. Other mistakes are said once.
func TestStreamOnOldNode(t *testing.T) {
	f := newFakeCluster("a", "b")
	var mu sync.Mutex
	var ran []string
	f.run = func(node string, args []string) (string, int) {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, node+" "+strings.Join(args, " "))
		switch {
		case slices.Contains(args, "--bad"):
			return stderrOnly + "unknown flag: --bad", 2
		case node == "a" && slices.Contains(args, untilStdinCloses):
			return stderrOnly + "unknown flag: " + untilStdinCloses, 2
		}
		return "traced on " + node + "\n", 0
	}
	stdout, stderr, code := f.runPlugin(t, "trace", "10.96.0.10:80", "--node", "a,b")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "a: traced on a\n") ||
		!strings.Contains(stdout, "b: traced on b\n") || len(ran) != 3 {
		t.Errorf("exit status %d after %q: %s\n%s", code, ran, stderr, stdout)
	}
	ran = nil
	_, stderr, code = f.runPlugin(t, "trace", "10.96.0.10:80", "--node", "b", "--", "--bad")
	if code != 2 || strings.Count(stderr, "unknown flag: --bad") != 1 || len(ran) != 1 {
		t.Errorf("a mistake: exit status %d after %q: %s", code, ran, stderr)
	}
}
