package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"nftproxy/look/preflight"
)

// findings are what "nftproxy check" finds that is not green, as it prints it.
func (w *world) findings(ctx context.Context) ([]string, error) {
	out, err := w.command(ctx, "check", "--output=json")
	if err != nil {
		return nil, err
	}
	var report struct{ Findings []preflight.Finding }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return nil, fmt.Errorf("nftproxy check: %w: %s", err, out)
	}
	var all []string
	for _, f := range report.Findings {
		if f.Level != preflight.Green {
			all = append(all, fmt.Sprintf("%s: %s -> %s", f.Probe, f.Found, f.Do))
		}
	}
	return all, nil
}

// diagnose asks nftproxy's commands about the neighbour that has started.
func (t *trial) diagnose(ctx context.Context, before []string) error {
	found, err := t.findings(ctx)
	if err != nil {
		return err
	}
	t.result.Check = slices.DeleteFunc(found, func(f string) bool { return slices.Contains(before, f) })
	closed := t.result.Events[0].Table.Closed
	i := slices.IndexFunc(t.flows, func(f flow) bool { return f.from == "outside" && slices.Contains(closed, f.name()) })
	if i < 0 {
		return nil
	}
	f := t.flows[i]
	from := t.net.OutsideAddrs[0]
	if f.addr.Addr().Is6() {
		from = t.net.OutsideAddrs[1]
	}
	out, err := t.command(ctx, "explain", "--from="+from.String(), fmt.Sprintf("%v/%s", f.addr, f.protocol))
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, "hook ") {
			t.result.Explain = append(t.result.Explain, strings.TrimSpace(line))
		}
	}
	return nil
}
