package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"nftproxy/bench/data"
	"nftproxy/bench/result"
)

// newChoicesCommand measures what the options of a Service cost.
func newChoicesCommand() *cobra.Command {
	var c data.Choices
	var out string
	var endpoints int
	cmd := &cobra.Command{
		Use:   "choices",
		Short: "Measure ways to draw endpoints, changed weights, and a rolling update with hashing; a few minutes, as root",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Log = cmd.ErrOrStderr()
			figures, err := c.Run(cmd.Context())
			if err != nil {
				return err
			}
			rolling, err := c.Roll(cmd.Context(), endpoints)
			if err != nil {
				return err
			}
			return writeChoices(cmd.OutOrStdout(), out, append(figures, rolling.Figures()...), rolling)
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&c.Services, "services", []int{1, 10_000}, "`numbers` of Services")
	f.IntVar(&c.Rounds, "rounds", 200, "`number` of rounds, in which each way to draw has its turn")
	f.IntVar(&c.Burst, "burst", 100, "`number` of connections of a turn")
	f.IntVar(&c.Draws, "draws", 1_000_000, "`number` of connections whose endpoints are counted")
	f.IntVar(&c.Loads, "loads", 7, "`number` of first loads")
	f.IntVar(&c.Commits, "commits", 50, "`number` of times that a weight changes, and changes back, after each of them")
	f.IntVar(&endpoints, "endpoints", 100, "`number` of endpoints that the rolling update replaces")
	f.StringVar(&out, "out", filepath.Join("docs", "bench", "choices"), "`directory` of the tables and the picture")
	return cmd
}

// writeChoices writes the tables and the picture into a directory, and the figures to w.
func writeChoices(w io.Writer, dir string, figures []data.Figure, rolling data.Rolling) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{
		"figures.csv":        func(w io.Writer) error { return data.WriteFigures(w, figures) },
		"rolling-update.csv": rolling.Write,
	} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if err := errors.Join(write(f), f.Close()); err != nil {
			return fmt.Errorf("write %s: %w", f.Name(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "rolling-update.svg"), drawRolling(rolling), 0o644); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range figures {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.4g %s", f.Question, f.Case, result.Count(f.Services), f.Value, f.Unit)
		if f.Against != "" {
			fmt.Fprintf(t, "\t%.3g times %s", f.Ratio, f.Against)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// drawRolling shows how many clients have another endpoint, or had one meanwhile, as the update goes on.
func drawRolling(r data.Rolling) []byte {
	var hash, least, random []float64
	for i, s := range r.Steps {
		hash = append(hash, s.EverMoved)
		least = append(least, float64(i+1)/float64(r.Endpoints))
		random = append(random, 1-math.Pow(1/float64(r.Endpoints), float64(i+1)))
	}
	last := func(list []float64, at int) string { return fmt.Sprintf("%.0f %%", 100*list[at-1]) }
	half := max(1, len(r.Steps)/2)
	told := func(list []float64) string { return fmt.Sprintf("%s after %d endpoints", last(list, half), half) }
	return result.DrawSeconds(fmt.Sprintf("A rolling update of %d endpoints", r.Endpoints),
		"Clients that have another endpoint than before, or had one meanwhile.",
		"endpoints replaced", []result.Seconds{
			{Backend: "off", Name: "a new draw each time", Shares: random, Told: told(random)},
			{Backend: result.NFTProxy, Name: "balance: client", Shares: hash, Told: told(hash)},
			{Backend: result.BareNetlink, Name: "the least", Shares: least, Told: told(least)},
		})
}
