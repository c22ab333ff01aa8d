package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"nftproxy/look/basechain"
)

// queues looks for a program that waits for packets in a queue, such as a network policy engine, where no rule hands it
// any. A kernel can have queues (nfnetlink_queue) and no rules of nftables for them (nft_queue): it refuses the
// engine's rules, and the engine runs on.
func (o Options) queues(all baseChains) []Finding {
	const probe = "queues"
	text, err := os.ReadFile(filepath.Join(o.Proc, "thread-self/net/netfilter/nfnetlink_queue"))
	if errors.Is(err, fs.ErrNotExist) {
		return []Finding{green(probe, "the kernel has none, or has not loaded nfnetlink_queue")}
	}
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	var numbers []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 0 {
			numbers = append(numbers, fields[0])
		}
	}
	if len(numbers) == 0 {
		return []Finding{green(probe, "no program waits for packets in a queue")}
	}
	list, err := all()
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	waits := "a program waits for packets in queue " + shortList(numbers)
	if slices.ContainsFunc(list, func(c basechain.Chain) bool { return c.Rules.Queues }) {
		return []Finding{green(probe, waits+", and rules hand it packets")}
	}
	return []Finding{yellow(probe, waits+", and no rule hands it packets: a network policy engine that works so "+
		"enforces nothing",
		"read its log. If the kernel has refused its rules, it lacks nftables' queue (CONFIG_NFT_QUEUE): load the module "+
			"nft_queue, or use another kernel, or rules for iptables' target NFQUEUE (docs/neighbours.md)")}
}

// shortList lists texts, of which it names eight.
func shortList(list []string) string {
	const most = 8
	text := strings.Join(list[:min(len(list), most)], ", ")
	if len(list) > most {
		text += fmt.Sprintf(" and %d more", len(list)-most)
	}
	return text
}
