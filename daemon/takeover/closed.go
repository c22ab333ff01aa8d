package takeover

import (
	"errors"
	"fmt"
	"strings"

	"nftproxy/look/basechain"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/node/otherproxy"
)

// Closed says what may drop the packets that a chain of kube-proxy's accepts; nil if nothing may. It looks at the
// chains of all programs on the hook, whatever their order: which one drops a packet depends on the packet.
// Where it cannot tell, it says so, and the chain stays.
func Closed(o otherproxy.Opening) error {
	ours, err := ourTables()
	if err != nil {
		return fmt.Errorf("it cannot be told what drops packets: %w", err)
	}
	chains, err := basechain.Closing(ours)
	if err != nil {
		return fmt.Errorf("it cannot be told what drops packets: %w", err)
	}
	family, _, _ := strings.Cut(o.Table, " ")
	for i := range chains {
		if c := &chains[i]; c.Hook == o.Hook && (c.Family == family || c.Family == "inet") {
			return errors.New(c.ClosesText())
		}
	}
	return nil
}

// ourTables returns the tables that an nftproxy has made.
func ourTables() ([]nft.TableID, error) {
	var ids []nft.TableID
	return ids, withKernel(func(conn *kernel.Conn) error {
		tables, err := conn.OurTables()
		for _, t := range tables {
			ids = append(ids, t.ID)
		}
		return err
	})
}
