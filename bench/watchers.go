package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"nftproxy/bench/watchers"
)

// The command by which a process of watchers starts.
const watchersCommand = "watchers-process"

// newWatchersCommand measures what the watches of many nodes cost.
func newWatchersCommand() *cobra.Command {
	c := watchers.Config{Log: os.Stderr}
	var nodes int
	cmd := &cobra.Command{
		Use: "watchers", Short: "Measure what nodes cost the API server and the network by their watches; a table, and the line through it for more nodes",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runWatchers(cmd.Context(), c, nodes, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&c.Counts, "watchers", []int{0, 1, 10, 100}, "numbers of watchers")
	f.IntVar(&c.Services, "services", 1000, "number of Services")
	f.IntVar(&c.Endpoints, "endpoints", 10, "number of endpoints of each Service")
	f.IntVar(&c.Changes, "changes", 200, "number of changes")
	f.DurationVar(&c.Rest, "rest", 2*time.Minute, "how long the watchers are left alone")
	f.DurationVar(&c.Away, "away", 10*time.Second, "how long the API server is away; 0 leaves that out")
	f.IntVar(&nodes, "nodes", 5000, "number of nodes to calculate the cost for")
	return cmd
}

func runWatchers(ctx context.Context, c watchers.Config, nodes int, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.Worker = []string{self, watchersCommand}
	results, err := watchers.Run(ctx, c)
	if len(results) > 0 {
		err = errors.Join(err, watchers.Table(out, c, results, nodes))
	}
	return err
}

// newWatchersProcessCommand is a process of watchers.
func newWatchersProcessCommand() *cobra.Command {
	return &cobra.Command{
		Use: watchersCommand + " KUBECONFIG COUNT", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			count, err := strconv.Atoi(args[1])
			if err != nil {
				return fmt.Errorf("number of watchers: %w", err)
			}
			return watchers.Work(cmd.Context(), args[0], count, os.Stdin, os.Stdout)
		},
	}
}
