package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// Rules returns the rules of a table by handle, by which the kernel's traces name them; none for a missing table. A
// rule ends with nft.Unknown where package nft has no statement for the rest. Rules that come or go meanwhile may be
// missing.
func (c *Conn) Rules(id nft.TableID) (map[uint64]nft.Rule, error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	rules := map[uint64]nft.Rule{}
	err := c.reader.Receive(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, uint8(id.Family),
		new(nfnetlink.Encoder).Text(unix.NFTA_RULE_TABLE, id.Name).B, func(m nfnetlink.Message) error {
			attrs := m.Attributes()
			handle := attrs.Get(unix.NFTA_RULE_HANDLE)
			// Some kernels list the rules of all tables.
			if attrs.Text(unix.NFTA_RULE_TABLE) != id.Name || len(handle) != 8 {
				return nil
			}
			rules[binary.BigEndian.Uint64(handle)] = recogniseRule(rawRuleOf(attrs), id.Family)
			return nil
		})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("read the rules of table %s: %w", id, err)
	}
	return rules, nil
}

// rawRuleOf returns the rule in a message of the kernel.
func rawRuleOf(attrs nfnetlink.Attributes) rawRule {
	return rawRule{
		expressions: slices.Clone(attrs.Get(unix.NFTA_RULE_EXPRESSIONS)),
		userdata:    slices.Clone(attrs.Get(unix.NFTA_RULE_USERDATA)),
		compat:      attrs.Get(unix.NFTA_RULE_COMPAT) != nil,
	}
}
