package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"nftproxy/test/cmd/soak/script"
)

// reduce looks for a shorter script that still breaks a promise, and writes it beside the
// long one. The promise may be another one: the report says which.
func reduce(ctx context.Context, o options, events []script.Event, out io.Writer) error {
	plays := 0
	fails := func(shorter []script.Event) (bool, error) {
		for range o.tries {
			plays++
			broken, err := o.breaks(ctx, shorter)
			if err != nil || broken != "" {
				fmt.Fprintf(out, "play %d, %d events: %s\n", plays, len(shorter), firstLine(broken))
				return err == nil, err
			}
		}
		fmt.Fprintf(out, "play %d, %d events: nothing\n", plays, len(shorter))
		return false, nil
	}
	if broken, err := fails(events); err != nil || !broken {
		return errors.Join(err, fmt.Errorf("%s: the whole script breaks nothing in %d plays (see --tries)", o.script,
			o.tries))
	}
	short, err := script.Reduce(events, fails)
	file := strings.TrimSuffix(o.script, ".soak") + "-short.soak"
	var text strings.Builder
	fmt.Fprintf(&text, "# a part of %s that still fails, found in %d plays\n", o.script, plays)
	err = errors.Join(err, script.Write(&text, short), os.WriteFile(file, []byte(text.String()), 0o644))
	fmt.Fprintf(out, "%d of %d events: %s\n", len(short), len(events), file)
	return err
}

// breaks plays a script and returns the promise that it breaks, if any. An error is one of
// the run itself.
func (o options) breaks(ctx context.Context, events []script.Event) (string, error) {
	r := &run{count: newCounts()}
	err := r.play(ctx, o, listed(events), io.Discard)
	var broken *failure
	if errors.As(err, &broken) {
		return broken.what, nil
	}
	return "", err
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
