package main

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"

	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// table is a program that nft is to list.
type table struct {
	name    string
	program *nft.Program
	// learns says that it has rules with the original port of a connection in a concatenation, by
	// which clients of node ports are remembered. nft before 1.1 prints them and does not parse them.
	learns bool
}

// randomTables are the programs of random clusters and configurations, which have every kind of
// rule; of each cluster also the program without session affinity.
func randomTables(n int) []table {
	var all []table
	for seed := range uint64(n) {
		const stream = 21
		cfg, _, services, b := gen.Cluster(rand.New(rand.NewPCG(seed, stream)))
		name := fmt.Sprintf("random cluster %d", seed)
		all = append(all, newTable(name, ruleset.Compile(cfg, b.Snapshot())))
		for _, s := range services {
			forgetful := *s
			forgetful.AffinityTimeout = 0
			b.Set(&forgetful)
		}
		all = append(all, newTable(name+" without session affinity", ruleset.Compile(cfg, b.Snapshot())))
	}
	return all
}

// fullTable is the program of many Services.
func fullTable(services int) table {
	const endpoints = 10
	cfg := ruleset.Config{Table: ruleset.DefaultTable, Counters: true}
	return newTable(fmt.Sprintf("%d Services x %d", services, endpoints),
		ruleset.Compile(cfg, gen.Uniform(services, endpoints)))
}

func newTable(name string, p *nft.Program) table {
	t := table{name: name, program: p}
	for kind := range ruleKinds([]table{t}) {
		t.learns = t.learns || strings.Contains(kind, "ct original proto-dst")
	}
	return t
}

// ruleKinds has the rules of all tables, without names and numbers.
func ruleKinds(tables []table) map[string]bool {
	names := regexp.MustCompile(`[0-9a-f:.]*[0-9][0-9a-f:./]*|(@|goto |jump )\S+|"[^"]*"`)
	kinds := map[string]bool{}
	for _, t := range tables {
		for _, f := range nft.Families() {
			for _, chain := range t.program.Table(f).Chains.All() {
				for _, r := range chain.Rules {
					kinds[names.ReplaceAllString(r.Text(f), "${1}N")] = true
				}
			}
		}
	}
	return kinds
}
