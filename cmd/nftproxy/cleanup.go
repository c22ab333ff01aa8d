package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/spf13/cobra"

	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

func newCleanupCommand() *cobra.Command {
	var table string
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove the tables that run made",
		Long: `cleanup removes every Service from this node: the tables "ip nftproxy" and
"ip6 nftproxy", and tables that earlier runs with another --nftproxy-table left.
Start kube-proxy (or another proxy) before cleanup, so that open connections go on.

A running nftproxy owns its tables, and the kernel lets no other process delete
them. Stop nftproxy first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := kernel.Open(kernel.Config{})
			if err != nil {
				return err
			}
			defer conn.Close()
			return cleanup(cmd, conn, table)
		},
	}
	cmd.Flags().StringVar(&table, ownPrefix+"table", ruleset.DefaultTable, "name of the nftables tables")
	return cmd
}

func cleanup(cmd *cobra.Command, conn *kernel.Conn, table string) error {
	tables, err := conn.Tables(table)
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	former, err := abandonedTables(conn, table)
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	if len(tables)+len(former) == 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "no table %s: nothing to remove\n", table)
		return nil
	}
	tables = append(tables, former...)
	err = conn.Delete(tables)
	if errors.Is(err, syscall.EPERM) {
		for _, t := range tables {
			if t.Owner != 0 {
				return fmt.Errorf("table %s belongs to a running process, %s: stop it first (kubectl -n kube-system delete daemonset nftproxy, or kill it), then run cleanup again", t.ID, ownerText(t.Owner))
			}
		}
	}
	if err != nil {
		return fmt.Errorf("delete tables: %w", err)
	}
	for _, t := range tables {
		fmt.Fprintf(cmd.OutOrStdout(), "removed table %s\n", t.ID)
	}
	return nil
}
