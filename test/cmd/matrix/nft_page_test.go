package main

import (
	"errors"
	"strings"
	"testing"
)

func TestNFTMatrix(t *testing.T) {
	plain, learner := table{name: "plain"}, table{name: "learner", learns: true}
	refused := errors.New("nft -f -: exit status 1: /dev/stdin:3:5-7: Error: can not | use it\n\t\trule\n")
	old := nftColumn{nftRelease: nftRelease{suite: "bookworm"}, version: "1.0.6", outcomes: map[string][]nftOutcome{
		lists: {{plain, nil}, {learner, nil}}, listsJSON: {{plain, nil}, {learner, nil}},
		takesBack: {{plain, nil}, {learner, refused}}, jsonBack: {{plain, refused}, {learner, refused}},
	}}
	oldest := nftColumn{nftRelease: nftRelease{suite: "bullseye", dies: true}, version: "0.9.8",
		outcomes: map[string][]nftOutcome{
			lists: {{plain, errors.New("nft list ruleset: signal: segmentation fault: ")}},
		}}
	text := nftMatrix([]nftColumn{oldest, old})
	for _, want := range []string{
		"|  | nft 0.9.8 (bullseye) | nft 1.0.6 (bookworm) |\n| --- | --- | --- |\n",
		"| lists the tables | 0 of 1: `segmentation fault` | all 2 |\n",
		"|  | 1 of 2: `can not \\| use it` |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	for _, c := range []nftColumn{oldest, old} {
		if wrong := c.unexpected(); len(wrong) > 0 {
			t.Errorf("nft %s: %v", c.version, wrong)
		}
	}
	old.outcomes[takesBack][0].err = refused
	old.outcomes[jsonBack][0].err = nil
	if wrong := old.unexpected(); len(wrong) != 2 || !errors.Is(wrong[0], refused) || !strings.Contains(wrong[1].Error(),
		"by now") {
		t.Errorf("outcomes that are not the known ones: %v", wrong)
	}
}

// TestTables: the random clusters have rules of many kinds. Half of the tables remember clients of
// node ports, the others do not.
func TestTables(t *testing.T) {
	tables := randomTables(12)
	if kinds := ruleKinds(tables); len(kinds) < 60 {
		t.Errorf("only %d kinds of rules", len(kinds))
	}
	learning := 0
	for _, table := range tables {
		if table.learns {
			learning++
		}
	}
	if learning < len(tables)/3 || learning > len(tables)/2 {
		t.Errorf("%d of %d tables remember clients", learning, len(tables))
	}
}
