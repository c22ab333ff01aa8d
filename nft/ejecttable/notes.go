package ejecttable

import (
	"cmp"
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
	"nftproxy/model/treap"
	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// noteSet is a set in which each endpoint is a text, "shop/web TCP 80 10.0.0.1:8080 1795694587 5 connections without
// answer". The set has it as comments of up to nft.MaxComment bytes: an element's number is that of the text, and in
// the last byte that of the piece. A change costs what differs.
type noteSet struct {
	name string
	// numbers has the texts that are to be there, each with its number; 0 for one that is not written.
	numbers map[string]uint32
	// free are the numbers up to last that no text has. written is the number of elements.
	free    []uint32
	last    uint32
	written int
}

// The names of the sets. growing has a part such as "1/4" in place of a reason.
const (
	leftOut = "left-out"
	growing = "growing"
)

const (
	pieces = 1 << 8
	// mostOfOne is how many elements one message may have: an attribute has at most 64 KiB.
	mostOfOne = 256
	// mostElements is the size of a set: 256 kB. The kernel does not make a set with a size larger, which would hide
	// elements from a reader meanwhile. Endpoints beyond it are not shown.
	mostElements = 1 << 14
)

func setOf(table *nftables.Table, name string) *nftables.Set {
	return &nftables.Set{Table: table, Name: name, KeyType: nftables.TypeMark, KeyByteOrder: binaryutil.NativeEndian,
		Size: mostElements}
}

// SetLeft replaces what the node does without. There are several transactions if much of it is new.
func (t *Table) SetLeft(left service.Ejections) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	gone, come := differences(t.left, left, func(name service.Name, e service.Ejection) string {
		return noteText(name, e.PortEndpoint, e.Since, e.Why)
	})
	t.left = left
	return t.set(&t.notes[0], gone, come)
}

// SetGrowth replaces what is growing, as SetLeft. If nothing has changed, it looks whether another program has removed
// it.
func (t *Table) SetGrowth(growth service.Growth) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	gone, come := differences(t.growth, growth, func(name service.Name, g service.Growing) string {
		return noteText(name, g.PortEndpoint, g.Since, fmt.Sprintf("%d/%d", g.Part, service.WholePart))
	})
	t.growth = growth
	return t.set(&t.notes[1], gone, come)
}

// differences are the texts that only one of two has.
func differences[N any, L ~[]N](old, next treap.Map[service.Name, *L],
	text func(service.Name, N) string) (gone, come map[string]bool) {
	gone, come = map[string]bool{}, map[string]bool{}
	for c := range treap.Diff(old, next) {
		if c.HadOld {
			for _, n := range *c.Old {
				gone[text(c.Key, n)] = true
			}
		}
		if c.HasNew {
			for _, n := range *c.New {
				if at := text(c.Key, n); gone[at] {
					delete(gone, at)
				} else {
					come[at] = true
				}
			}
		}
	}
	return gone, come
}

func (t *Table) set(s *noteSet, gone, come map[string]bool) error {
	numbers := map[string]uint32{} // of what has gone
	for text := range gone {
		if n := s.numbers[text]; n > 0 {
			numbers[text] = n
		}
		delete(s.numbers, text)
	}
	for text := range come {
		s.numbers[text] = 0
	}
	switch {
	case t.conn == nil && len(s.numbers) == 0 && !t.hears:
		return nil
	case t.conn == nil:
		return t.open() // It replaces what an earlier process has left.
	}
	var err error
	if len(gone)+len(come) > 0 {
		err = t.fill(s, numbers)
	} else if len(s.numbers) > 0 {
		_, err = t.conn.GetSetByName(t.table(), s.name)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return t.make() // Another program has removed it.
	case err != nil: // It may have written something there.
		t.conn.FlushSet(setOf(t.table(), s.name))
		return t.fill(s, nil)
	}
	return nil
}

// fill takes texts with these numbers from a set, and gives it those that are not written, as far as there is room.
// After an error nothing counts as written.
func (t *Table) fill(s *noteSet, gone map[string]uint32) error {
	var out, in []nftables.SetElement
	for text, n := range gone {
		out = append(out, elements(n, text)...)
	}
	for text, n := range s.numbers {
		if size := (len(text) + nft.MaxComment - 1) / nft.MaxComment; n == 0 && s.written+size <= mostElements {
			if n = s.last + 1; len(s.free) > 0 {
				n, s.free = s.free[0], s.free[1:]
			} else {
				s.last = n
			}
			s.numbers[text], s.written, in = n, s.written+size, append(in, elements(n, text)...)
		}
	}
	set := setOf(t.table(), s.name)
	for begun := false; !begun || len(out)+len(in) > 0; begun = true {
		i, j := min(len(out), mostOfOne), min(len(in), mostOfOne)
		var err error
		if i > 0 { // To delete none would delete all.
			err = t.conn.SetDeleteElements(set, out[:i])
		}
		if err == nil && j > 0 {
			err = t.conn.SetAddElements(set, in[:j])
		}
		if err == nil {
			err = t.conn.Flush()
		}
		if err != nil {
			s.forget()
			return fmt.Errorf("write the set %s of table %s: %w", s.name, t.name, err)
		}
		out, in = out[i:], in[j:]
	}
	for text, n := range gone {
		s.free, s.written = append(s.free, n), s.written-len(elements(n, text))
	}
	return nil
}

// forget notes that nothing is written.
func (s *noteSet) forget() {
	for text := range s.numbers {
		s.numbers[text] = 0
	}
	s.free, s.last, s.written = nil, 0, 0
}

// elements are the pieces of a text.
func elements(number uint32, text string) (list []nftables.SetElement) {
	for piece := range slices.Chunk([]byte(text), nft.MaxComment) {
		list = append(list, nftables.SetElement{Key: nfnetlink.HostOrder(number*pieces + uint32(len(list))),
			Comment: string(piece)})
	}
	return list
}

func noteText(name service.Name, e service.PortEndpoint, since time.Time, what string) string {
	text := fmt.Sprintf("%s %s %d %s %d %s", name, e.Protocol, e.Port, e.Addr, since.Unix(), strings.Map(printable, what))
	return text[:min(len(text), pieces*nft.MaxComment)]
}

// printable replaces what a comment of nft must not have.
func printable(r rune) rune {
	if r < ' ' || r > '~' || r == '"' {
		return '?'
	}
	return r
}

// Left returns what the node does without, by the table beside the tables of Services with that name in the network
// namespace of the calling thread. There is nothing if there is no such table. What another program has written there
// is left out.
func Left(services string) (left service.Ejections, err error) {
	of := map[service.Name][]service.Ejection{}
	err = read(services, leftOut, func(name service.Name, e service.Ejection) { of[name] = append(of[name], e) })
	for name, list := range of {
		ejected := service.NewNotes(list)
		left = left.Set(name, &ejected)
	}
	return left, err
}

// Growth returns what is growing, as Left.
func Growth(services string) (growth service.Growth, err error) {
	of := map[service.Name][]service.Growing{}
	err = read(services, growing, func(name service.Name, e service.Ejection) {
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

// read yields a set's endpoints, with the end of the text as the reason.
func read(services, set string, yield func(service.Name, service.Ejection)) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	list, err := conn.GetSetElements(setOf(&nftables.Table{Family: nftables.TableFamilyINet, Name: Name(services)}, set))
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
