package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"nftproxy/look/inspect"
)

// The completions of a shell read the tables, as the commands do. Where they cannot be
// read, there are none.

// completeNamespaces completes --namespace.
func (o *getOptions) completeNamespaces(cmd *cobra.Command) {
	err := cmd.RegisterFlagCompletionFunc("namespace", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return o.complete(cmd, func(r *reading) []string {
			spaces := map[string]bool{}
			for _, name := range r.Names() {
				namespace, _ := name.Split()
				spaces[namespace] = true
			}
			return slices.Sorted(maps.Keys(spaces))
		})
	})
	if err != nil {
		panic(err) // the flag is there
	}
}

// completeServices completes names of Services: with --namespace NAME, else
// NAMESPACE/NAME.
func (o *getOptions) completeServices(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return o.complete(cmd, func(r *reading) []string {
		var names []string
		for _, name := range r.Names() {
			namespace, bare := name.Split()
			text := string(name)
			if o.namespace != "" && !o.allNamespaces {
				if namespace != o.namespace {
					continue
				}
				text = bare
			}
			if strings.HasPrefix(text, toComplete) && !slices.Contains(args, text) {
				names = append(names, text)
			}
		}
		return names
	})
}

// completeChains completes names of chains.
func (o *getOptions) completeChains(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return o.complete(cmd, func(r *reading) []string {
		names := map[string]bool{}
		for _, row := range r.ChainRows(inspect.Selection{}) {
			if strings.HasPrefix(row.Name, toComplete) && !slices.Contains(args, row.Name) {
				names[row.Name] = true
			}
		}
		return slices.Sorted(maps.Keys(names))
	})
}

// complete reads the tables and returns the candidates that a shell takes as they are:
// names from a table could hold anything.
func (o *getOptions) complete(cmd *cobra.Command, candidates func(*reading) []string) ([]string, cobra.ShellCompDirective) {
	r, err := o.read(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer r.conn.Close()
	plain := func(c rune) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("-._/", c)
	}
	names := slices.DeleteFunc(candidates(r), func(name string) bool {
		return strings.ContainsFunc(name, func(c rune) bool { return !plain(c) })
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
