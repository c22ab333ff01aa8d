// Command soak promises to find what breaks the proxy in the long run: it makes random
// events for as long as it is told, under traffic without a pause, and checks the kernel
// against the cluster after each round of them.
//
// A run is a node in network namespaces with the real nftproxy binary, a real API server,
// pods that serve, and clients of every kind. Its events come from a seed, or from a
// script that an earlier run kept (package script). A Book judges which answers a client may
// get. The command mends nothing, and leaves nothing behind but
// the script and the log of a run that failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"nftproxy/test/cmd/soak/script"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	length   time.Duration
	seed     uint64
	script   string
	dir      string
	nftproxy string
	older    string
	// olderCommit is where the older binary is from, for people.
	olderCommit string
	reduce      bool
	tries       int
	verbose     bool
}

func command(ctx context.Context, args []string, out io.Writer) error {
	var o options
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.DurationVar(&o.length, "for", 10*time.Minute, "how long the events go on; a script has its own end")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the events; 0 takes a new one")
	f.StringVar(&o.script, "script", "", "file of a script to play instead of events from a seed")
	f.StringVar(&o.dir, "dir", "bin/soak-runs", "directory for the scripts and logs of runs")
	f.StringVar(&o.nftproxy, "nftproxy", "bin/nftproxy", "the binary to try")
	f.StringVar(&o.older, "older", "", "binary of an older release, to upgrade from; empty leaves these events out")
	f.StringVar(&o.olderCommit, "older-commit", "", "the commit that the older binary was built from, which a kept "+
		"script names")
	f.BoolVar(&o.reduce, "reduce", false, "look for a shorter script that fails as the one of --script does")
	f.IntVar(&o.tries, "tries", 1, "how often --reduce plays a script before it counts as one that does not fail")
	f.BoolVar(&o.verbose, "v", false, "print each event")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.script == "" && o.reduce {
		return errors.New("--reduce needs --script")
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1e9) + 1
	}
	if err := o.absolute(); err != nil {
		return err
	}
	if o.script == "" {
		return play(ctx, o, fmt.Sprintf("seed %d", o.seed), generated(o.seed, o.length), out)
	}
	file, err := os.Open(o.script)
	if err != nil {
		return err
	}
	events, err := script.Parse(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("%s: %w", o.script, err)
	}
	if o.older == "" && slices.ContainsFunc(events, func(e script.Event) bool { return e.Verb == script.Older }) {
		return fmt.Errorf("%s: it has upgrades from an older release: name its commit by OLDER, the one that the script "+
			"was made with", o.script)
	}
	if o.reduce {
		return reduce(ctx, o, events, out)
	}
	return play(ctx, o, o.script, listed(events), out)
}

// absolute makes the paths absolute and the directory.
func (o *options) absolute() error {
	for _, path := range []*string{&o.dir, &o.nftproxy, &o.older} {
		if *path == "" {
			continue
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if _, err := os.Stat(o.nftproxy); err != nil {
		return fmt.Errorf("the binary to try: %w", err)
	}
	return os.MkdirAll(o.dir, 0o755)
}

// events yields the events of a run, and false at its end.
type events func() (script.Event, bool)

// generated yields a seed's events until a time has passed. The last one is a Settle.
func generated(seed uint64, length time.Duration) events {
	g := script.NewGenerator(seed)
	var begun time.Time
	settled := false
	return func() (script.Event, bool) {
		if settled && time.Since(begun) > length {
			return script.Event{}, false
		}
		e := g.Next()
		if e.Verb != script.World && begun.IsZero() {
			begun = time.Now() // the world took its time
		}
		settled = e.Verb == script.Settle
		return e, true
	}
}

func listed(events []script.Event) events {
	return func() (script.Event, bool) {
		if len(events) == 0 {
			return script.Event{}, false
		}
		e := events[0]
		events = events[1:]
		return e, true
	}
}
