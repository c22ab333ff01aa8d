package ejecttable

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
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

// noteSet is a set in which each endpoint is a text, "shop/web TCP 80 10.0.0.1:8080 1795694587 5 connections without answer". The set
// has it as comments of up to nft.MaxComment bytes: an element's number is that of the text, and in the last byte that of the piece.
type noteSet string

const (
	leftOut noteSet = "left-out"
	// growing has a part such as "1/4" in place of a reason.
	growing noteSet = "growing"
)

func noteSets() []noteSet { return []noteSet{leftOut, growing} }

const (
	pieces = 1 << 8
	// mostOfOne is how many elements one message may have: an attribute has at most 64 KiB.
	mostOfOne = 256
	// mostElements is the size of a set: 256 kB. The kernel does not make a set with a size larger, which would hide elements from
	// a reader meanwhile. Endpoints beyond it are not shown.
	mostElements = 1 << 14
)

func (n noteSet) in(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: string(n), KeyType: nftables.TypeMark, KeyByteOrder: binaryutil.NativeEndian, Size: mostElements}
}

// SetLeft replaces what the node does without. There are several transactions if that is a lot.
func (t *Table) SetLeft(left service.Ejections) error {
	return t.set(leftOut, func(yield func(string) bool) {
		for name, ejected := range left.All() {
			for _, e := range *ejected {
				if !yield(noteText(name, e.Protocol, e.Port, e.Addr, e.Since, e.Why)) {
					return
				}
			}
		}
	})
}

// SetGrowth replaces what is growing. There are several transactions if that is a lot.
func (t *Table) SetGrowth(growth service.Growth) error {
	return t.set(growing, func(yield func(string) bool) {
		for name, growers := range growth.All() {
			for _, g := range *growers {
				if !yield(noteText(name, g.Protocol, g.Port, g.Addr, g.Since, fmt.Sprintf("%d/%d", g.Part, service.WholePart))) {
					return
				}
			}
		}
	})
}

func (t *Table) set(set noteSet, texts iter.Seq[string]) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notes[set] = elements(texts)
	if t.conn == nil {
		if len(t.notes[set]) == 0 && !t.hears {
			return nil
		}
		return t.open() // It replaces what an earlier process has left.
	}
	if err := t.fill(set); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return t.make() // Another program has removed it.
}

// fill gives a set its elements.
func (t *Table) fill(of noteSet) error {
	set := of.in(t.table())
	t.conn.FlushSet(set)
	err := t.conn.Flush()
	for some := range slices.Chunk(t.notes[of], mostOfOne) {
		if err == nil {
			err = t.conn.SetAddElements(set, some)
		}
		if err == nil {
			err = t.conn.Flush()
		}
	}
	if err != nil {
		return fmt.Errorf("write the set %s of table %s: %w", of, t.name, err)
	}
	return nil
}

func elements(texts iter.Seq[string]) (list []nftables.SetElement) {
	n := uint32(0)
	for text := range texts {
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
	return list
}

func noteText(name service.Name, p service.Protocol, port uint16, addr netip.AddrPort, since time.Time, what string) string {
	return fmt.Sprintf("%s %s %d %s %d %s", name, p, port, addr, since.Unix(), strings.Map(printable, what))
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
func Left(services string) (left service.Ejections, err error) {
	of := map[service.Name][]service.Ejection{}
	err = leftOut.read(services, func(name service.Name, e service.Ejection) { of[name] = append(of[name], e) })
	for name, list := range of {
		ejected := service.NewNotes(list)
		left = left.Set(name, &ejected)
	}
	return left, err
}

// Growth returns what is growing, as Left.
func Growth(services string) (growth service.Growth, err error) {
	of := map[service.Name][]service.Growing{}
	err = growing.read(services, func(name service.Name, e service.Ejection) {
		part, unit, ok := strings.Cut(e.Why, "/")
		n, err := strconv.ParseUint(part, 10, 8)
		if ok && err == nil && unit == strconv.Itoa(service.WholePart) && n > 0 && n < service.WholePart {
			of[name] = append(of[name], service.Growing{PortEndpoint: e.PortEndpoint, Since: e.Since, Part: uint8(n)})
		}
	})
	for name, list := range of {
		growers := service.NewNotes(list)
		growth = growth.Set(name, &growers)
	}
	return growth, err
}

// read yields the set's endpoints, with the end of the text as the reason.
func (n noteSet) read(services string, yield func(service.Name, service.Ejection)) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	list, err := conn.GetSetElements(n.in(&nftables.Table{Family: nftables.TableFamilyINet, Name: Name(services)}))
	if errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return fmt.Errorf("read table %s: %w", Name(services), err)
	}
	number := func(e nftables.SetElement) uint32 { return binary.NativeEndian.Uint32(e.Key) }
	list = slices.DeleteFunc(list, func(e nftables.SetElement) bool { return len(e.Key) != 4 })
	slices.SortFunc(list, func(a, b nftables.SetElement) int { return cmp.Compare(number(a), number(b)) })
	texts := map[uint32]string{}
	for _, e := range list {
		texts[number(e)/pieces] += e.Comment
	}
	for _, text := range texts {
		if name, e, ok := parseText(text); ok {
			yield(name, e)
		}
	}
	return nil
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
