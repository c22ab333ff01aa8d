package kernel

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
)

// NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME (Linux 4.12) and NFNLGRP_NFTABLES, which x/sys/unix lacks.
const (
	attrGenPID     = 2
	attrGenName    = 3
	groupOfChanges = 7
)

// Writer is a process that has written to the ruleset.
type Writer struct {
	// PID is the process's ID as the node sees it, also where this process is in a
	// container. Name is its command, cut to 15 bytes.
	PID  uint32
	Name string
}

// NextWriter waits for the next transaction of another process in the network namespace, and
// returns that process. While it waits, the kernel reports each change of an object to it, which
// makes transactions slower. So call it only when the answer is needed, and not for long.
func (c *Conn) NextWriter(ctx context.Context, config Config) (Writer, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: config.NetNS})
	if err != nil {
		return Writer{}, fmt.Errorf("open netlink socket for changes: %w", err)
	}
	defer conn.Close()
	// Only the last message of a transaction comes through: NFT_MSG_NEWGEN, in a datagram of its own.
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 2}, // in network byte order
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(swapped(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN)),
			SkipFalse: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{},
	})
	if err != nil {
		return Writer{}, fmt.Errorf("assemble a filter: %w", err)
	}
	if err := conn.SetBPF(filter); err != nil {
		return Writer{}, fmt.Errorf("set the filter for changes: %w", err)
	}
	if err := conn.JoinGroup(groupOfChanges); err != nil {
		return Writer{}, fmt.Errorf("follow changes of nftables: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		received, err := conn.Receive()
		if ctx.Err() != nil {
			return Writer{}, ctx.Err()
		}
		if err != nil {
			return Writer{}, fmt.Errorf("follow changes of nftables: %w", err)
		}
		for _, m := range received {
			if m.Header.PID == c.writer.Port {
				continue
			}
			attrs := nfnetlink.Message{Body: m.Data}.Attributes()
			return Writer{PID: attrs.Uint32(attrGenPID), Name: attrs.Text(attrGenName)}, nil
		}
	}
}

// swapped is a number of the machine's byte order as a filter sees it.
func swapped(kind uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, kind))
}
