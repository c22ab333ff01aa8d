package ejecttable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// An endpoint that is left out is a text, "shop/web TCP 80 10.0.0.1:8080 1795694587 5 connections without answer". The set has
// it as comments of up to nft.MaxComment bytes: an element's number is that of the text, and in the last byte that of the piece.
const (
	pieces = 1 << 8
	// mostOfOne is how many elements one message may have: an attribute has at most 64 KiB.
	mostOfOne = 256
	// mostElements is the size of the set: 256 kB. The kernel does not make a set with a size larger, which would hide elements from
	// a reader meanwhile. Endpoints beyond it are not shown.
	mostElements = 1 << 14
)

func setOf(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: leftOut, KeyType: nftables.TypeMark, KeyByteOrder: binaryutil.NativeEndian, Size: mostElements}
}

// SetLeft replaces what the node does without. There are several transactions if that is a lot.
func (t *Table) SetLeft(left service.Ejections) error {
	t.left = elements(left)
	if t.conn == nil {
		if len(t.left) == 0 {
			return nil
		}
		return t.open()
	}
	return t.fill()
}

// fill gives the set its elements.
func (t *Table) fill() error {
	set := setOf(t.table())
	t.conn.FlushSet(set)
	err := t.conn.Flush()
	for some := range slices.Chunk(t.left, mostOfOne) {
		if err == nil {
			err = t.conn.SetAddElements(set, some)
		}
		if err == nil {
			err = t.conn.Flush()
		}
	}
	if err != nil {
		return fmt.Errorf("write the endpoints that are left out to table %s: %w", t.name, err)
	}
	return nil
}

func elements(left service.Ejections) (list []nftables.SetElement) {
	n := uint32(0)
	for name, ejected := range left.All() {
		for _, e := range *ejected {
			text := fmt.Sprintf("%s %s %d %s %d %s", name, e.Protocol, e.Port, e.Addr, e.Since.Unix(), strings.Map(printable, e.Why))
			if len(list)+len(text)/nft.MaxComment >= mostElements {
				return list
			}
			for i := range pieces {
				piece := text[:min(len(text), nft.MaxComment)]
				list = append(list, nftables.SetElement{Key: nfnetlink.HostOrder(n*pieces + uint32(i)), Comment: piece})
				if text = text[len(piece):]; text == "" {
					break
				}
			}
			n++
		}
	}
	return list
}

// printable replaces what a comment of nft must not have.
func printable(r rune) rune {
	if r < ' ' || r > '~' || r == '"' {
		return '?'
	}
	return r
}

// Left returns what the node does without, by the table beside the tables of Services with that name in the network namespace of
// the calling thread. There is nothing if there is no such table. What another program has written there is left out.
func Left(services string) (service.Ejections, error) {
	conn, err := nftables.New()
	if err != nil {
		return service.Ejections{}, fmt.Errorf("open nftables: %w", err)
	}
	list, err := conn.GetSetElements(setOf(&nftables.Table{Family: nftables.TableFamilyINet, Name: Name(services)}))
	if errors.Is(err, unix.ENOENT) {
		return service.Ejections{}, nil
	} else if err != nil {
		return service.Ejections{}, fmt.Errorf("read table %s: %w", Name(services), err)
	}
	return parse(list), nil
}

func parse(list []nftables.SetElement) (left service.Ejections) {
	number := func(e nftables.SetElement) uint32 { return binary.NativeEndian.Uint32(e.Key) }
	list = slices.DeleteFunc(list, func(e nftables.SetElement) bool { return len(e.Key) != 4 })
	slices.SortFunc(list, func(a, b nftables.SetElement) int { return int(int64(number(a)) - int64(number(b))) })
	texts := map[uint32]string{}
	for _, e := range list {
		texts[number(e)/pieces] += e.Comment
	}
	of := map[service.Name][]service.Ejection{}
	for _, text := range texts {
		if name, e, ok := parseText(text); ok {
			of[name] = append(of[name], e)
		}
	}
	for name, ejections := range of {
		ejected := service.NewEjected(ejections)
		left = left.Set(name, &ejected)
	}
	return left
}

func parseText(text string) (name service.Name, e service.Ejection, ok bool) {
	fields := strings.SplitN(text, " ", 6)
	if len(fields) < 6 {
		return "", e, false
	}
	protocol, protocolErr := service.ParseProtocol(fields[1])
	port, portErr := strconv.ParseUint(fields[2], 10, 16)
	addr, addrErr := netip.ParseAddrPort(fields[3])
	since, sinceErr := strconv.ParseInt(fields[4], 10, 64)
	e.Protocol, e.Port, e.Addr, e.Since, e.Why = protocol, uint16(port), addr, time.Unix(since, 0), fields[5]
	return service.Name(fields[0]), e, errors.Join(protocolErr, portErr, addrErr, sinceErr) == nil
}
