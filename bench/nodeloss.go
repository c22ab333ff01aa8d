package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"nftproxy/bench/result"
)

// newNodeLossCommand draws what `realcluster node-loss` has written.
func newNodeLossCommand() *cobra.Command {
	var rate int
	cmd := &cobra.Command{
		Use: "node-loss DIRECTORY",
		Short: "Draw the tables of `realcluster node-loss` in off.csv, kube-proxy.csv and on.csv, as far as there are any, " +
			"as node-loss.svg beside them",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return drawNodeLoss(args[0], rate) },
	}
	cmd.Flags().IntVar(&rate, "rate", 200, "`number` of new connections a second, for the text")
	return cmd
}

func drawNodeLoss(dir string, rate int) error {
	var lines []result.Seconds
	for _, run := range []struct{ file, backend, name string }{
		{"off.csv", "off", "nftproxy, off"},
		{"kube-proxy.csv", result.KubeProxyNFTables, "kube-proxy 1.37.2"},
		{"on.csv", result.NFTProxy, "nftproxy, eject=on"},
	} {
		f, err := os.Open(filepath.Join(dir, run.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("draw the loss of a node: %w", err)
		}
		shares, err := result.ReadSeconds(f, "new connections")
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		lines = append(lines, result.Seconds{Backend: run.backend, Name: run.name, Shares: shares})
	}
	if len(lines) == 0 {
		return fmt.Errorf("%s has no table of node-loss", dir)
	}
	picture := result.DrawSeconds("A node of three loses its network",
		fmt.Sprintf("%d new connections a second to Services with 3 and 30 endpoints: the share that fails or takes more "+
			"than a second.", rate),
		"seconds after the cut", lines)
	return os.WriteFile(filepath.Join(dir, "node-loss.svg"), picture, 0o644)
}
