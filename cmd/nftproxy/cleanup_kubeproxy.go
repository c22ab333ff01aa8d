package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"nftproxy/daemon/takeover"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/node/otherproxy"
)

// cleanupKubeProxy removes kube-proxy's rules. Unless forced, it first makes sure that
// kube-proxy does not run and that nftproxy serves both families. Unless accepting, it leaves chains that accept
// what something else may drop.
func cleanupKubeProxy(cmd *cobra.Command, force, accepting bool) error {
	found, err := otherproxy.Find()
	if err != nil {
		return fmt.Errorf("look for the rules of kube-proxy: %w", err)
	}
	if len(found) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "no rules of kube-proxy: nothing to remove")
		return nil
	}
	if !force {
		running, err := otherproxy.LookForKubeProxy(cmd.Context())
		if err != nil {
			return fmt.Errorf("look for kube-proxy: %w", err)
		}
		if err := errors.Join(checkStopped(running), checkServed()); err != nil {
			return err
		}
	}
	keep := takeover.Closed
	if accepting {
		keep = nil
	}
	var left []error
	err = otherproxy.RemoveAll(cmd.Context(), keep, func(r otherproxy.Rules, err error) {
		if err != nil {
			left = append(left, err)
			return
		}
		fmt.Fprintf(cmd.OutOrStdout(), "removed kube-proxy's rules in %s\n", r)
	})
	return errors.Join(append(left, err)...)
}

func checkStopped(running otherproxy.Running) error {
	switch {
	case running.Yes():
		return fmt.Errorf("kube-proxy %s: stop it first (docs/migrate.md), then run cleanup again", running)
	case !running.No():
		return fmt.Errorf("kube-proxy %s: run cleanup on the node itself or in a pod with hostPID: true, or make sure that no kube-proxy runs here, in a program such as k3s neither (docs/migrate.md, Whether kube-proxy runs), and add --force", running)
	}
	return nil
}

// checkServed returns an error if a family has no table of a running nftproxy. A table that
// an ended one left goes out of date.
func checkServed() error {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	tables, err := conn.OurTables()
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	used, err := takeover.UsedTables()
	if err != nil {
		return err
	}
	served := map[nft.Family]bool{}
	for _, t := range tables {
		served[t.ID.Family] = served[t.ID.Family] || used(t)
	}
	for _, f := range nft.Families() {
		if !served[f] {
			return fmt.Errorf("there is no table of a running nftproxy for %s: without kube-proxy's rules, no proxy would serve this node; start nftproxy first, or add --force", f)
		}
	}
	return nil
}
