package kernel

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// What x/sys/unix lacks of objects of time-outs (Linux 4.19; nf_tables.h, nfnetlink_cttimeout.h).
const (
	objectTimeout = 7 // NFT_OBJECT_CT_TIMEOUT

	attrTimeoutL3Proto = 1 // NFTA_CT_TIMEOUT_L3PROTO
	attrTimeoutL4Proto = 2 // NFTA_CT_TIMEOUT_L4PROTO
	attrTimeoutStates  = 3 // NFTA_CT_TIMEOUT_DATA

	attrTCPEstablished = 3 // CTA_TIMEOUT_TCP_ESTABLISHED
	attrUDPUnreplied   = 1 // CTA_TIMEOUT_UDP_UNREPLIED
	attrUDPReplied     = 2 // CTA_TIMEOUT_UDP_REPLIED
)

// addTimeout adds an object with the states that it names. The kernel fills in the others.
func (e *batchEncoder) addTimeout(i int, op nft.AddTimeout) error {
	t := op.Timeout
	states := map[uint16]time.Duration{}
	switch {
	case t.Protocol == unix.IPPROTO_TCP && t.Unreplied == 0 && t.Replied == 0:
		states[attrTCPEstablished] = t.Established
	case t.Protocol == unix.IPPROTO_UDP && t.Established == 0:
		states[attrUDPUnreplied], states[attrUDPReplied] = t.Unreplied, t.Replied
	default:
		return fmt.Errorf("no object has %+v", t)
	}
	at := e.beginSpan(i, 0, unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE|unix.NLM_F_EXCL, op.Table)
	e.Text(unix.NFTA_OBJ_NAME, t.Name)
	e.Uint32(unix.NFTA_OBJ_TYPE, objectTimeout)
	data := e.BeginNest(unix.NFTA_OBJ_DATA)
	e.Uint16(attrTimeoutL3Proto, uint16(op.Table.Family))
	e.Uint8(attrTimeoutL4Proto, t.Protocol)
	list := e.BeginNest(attrTimeoutStates)
	for kind := uint16(1); kind <= attrTCPEstablished; kind++ {
		if d, named := states[kind]; named {
			e.Uint32(kind, uint32(d/time.Second))
		}
	}
	e.EndNest(list)
	e.EndNest(data)
	e.EndMessage(at)
	return nil
}

// readTimeouts reads the table's objects of time-outs. One that is not for the table's family has no protocol, so that
// it is none of a program.
func (r *tableReader) readTimeouts(into map[string]nft.Timeout) error {
	only := new(encoder)
	only.Uint32(unix.NFTA_OBJ_TYPE, objectTimeout)
	return r.dumpObjects(unix.NFT_MSG_GETOBJ, only.B, func(attrs nfnetlink.Attributes) error {
		if attrs.Uint32(unix.NFTA_OBJ_TYPE) != objectTimeout {
			return nil
		}
		t := nft.Timeout{Name: attrs.Text(unix.NFTA_OBJ_NAME)}
		data := attrs.Get(unix.NFTA_OBJ_DATA)
		l3, l4, states := data.Get(attrTimeoutL3Proto), data.Get(attrTimeoutL4Proto), data.Get(attrTimeoutStates)
		seconds := func(kind uint16) time.Duration { return time.Duration(states.Uint32(kind)) * time.Second }
		if len(l3) == 2 && l3[1] == byte(r.want.Family) && len(l4) == 1 {
			switch t.Protocol = l4[0]; t.Protocol {
			case unix.IPPROTO_TCP:
				t.Established = seconds(attrTCPEstablished)
			case unix.IPPROTO_UDP:
				t.Unreplied, t.Replied = seconds(attrUDPUnreplied), seconds(attrUDPReplied)
			}
		}
		into[t.Name] = t
		return nil
	})
}
