package basechain

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
)

// verdictsOf reads the verdicts in a map. The library that reads rules does not read these.
func verdictsOf(table *nftables.Table, name string) (verdicts []expr.Verdict, err error) {
	socket, err := nfnetlink.Dial(nfnetlink.Config{})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer socket.Close()
	r := nfnetlink.Requester{Socket: socket, Subsystem: unix.NFNL_SUBSYS_NFTABLES}
	request := new(nfnetlink.Encoder).Text(unix.NFTA_SET_ELEM_LIST_TABLE, table.Name).Text(unix.NFTA_SET_ELEM_LIST_SET,
		name)
	err = r.Receive(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, uint8(table.Family), request.B,
		func(m nfnetlink.Message) error {
			for _, element := range m.Attributes().Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS).All() {
				v := element.Get(unix.NFTA_SET_ELEM_DATA).Get(unix.NFTA_DATA_VERDICT)
				if v.Get(unix.NFTA_VERDICT_CODE) != nil {
					verdicts = append(verdicts, expr.Verdict{Kind: expr.VerdictKind(int32(v.Uint32(unix.NFTA_VERDICT_CODE))),
						Chain: v.Text(unix.NFTA_VERDICT_CHAIN)})
				}
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", name, err)
	}
	return verdicts, nil
}
