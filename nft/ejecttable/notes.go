package ejecttable

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/model/treap"
	"nftproxy/nft"
)

// The names of the sets. Each has a text for each endpoint, "shop/web TCP 80 10.0.0.1:8080 1795694587 5 connections
// without answer", as comments of up to nft.MaxComment bytes: an element's key is a hash of the text, and its last byte
// the number of the piece. growing has a part such as "1/4" in place of a reason.
const (
	leftOut = "left-out"
	growing = "growing"
)

const (
	keySize, pieces = 16, 1 << 8
	// mostOfOne is how many elements one message may have: an attribute has at most 64 KiB.
	mostOfOne = 256
	// mostElements is the size of a set: 256 kB. The kernel does not make a set with a size larger, which would hide
	// elements from a reader meanwhile. Endpoints beyond it are not shown.
	mostElements = 1 << 14
)

func setOf(table *nftables.Table, name string) *nftables.Set {
	return &nftables.Set{Table: table, Name: name, KeyType: nftables.TypeIP6Addr, Size: mostElements}
}

// SetLeft replaces what the node does without. There are several transactions if much of it is new.
func (t *Table) SetLeft(left service.Ejections) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.left
	t.left = left
	return t.change(leftOut, differences(old, left, leftText), differences(left, old, leftText))
}

// SetGrowth replaces what is growing, as SetLeft. If nothing has changed, it looks whether another program has removed
// it.
func (t *Table) SetGrowth(growth service.Growth) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.growth
	t.growth = growth
	return t.change(growing, differences(old, growth, growthText), differences(growth, old, growthText))
}

// differences are the texts that only the second one of two has.
func differences[N comparable, L ~[]N](old, next treap.Map[service.Name, *L],
	text func(service.Name, N) string) (texts []string) {
	for c := range treap.Diff(old, next) {
		if !c.HasNew {
			continue
		}
		was := map[N]bool{}
		if c.HadOld {
			for _, n := range *c.Old {
				was[n] = true
			}
		}
		for _, n := range *c.New {
			if !was[n] {
				texts = append(texts, text(c.Key, n))
			}
		}
	}
	return texts
}

func leftText(name service.Name, e service.Ejection) string {
	return noteText(name, e.PortEndpoint, e.Since, e.Why)
}

func growthText(name service.Name, g service.Growing) string {
	return noteText(name, g.PortEndpoint, g.Since, fmt.Sprintf("%d/%d", g.Part, service.WholePart))
}

// change writes what has come and removes what has gone. If another program has changed the table, it makes it anew.
func (t *Table) change(set string, come, gone []string) error {
	switch {
	case t.conn == nil && t.left.Len()+t.growth.Len() == 0 && !t.hears:
		return nil
	case t.conn == nil:
		return t.open() // It replaces what an earlier process has left.
	}
	err := t.write(set, elements(come), t.conn.SetAddElements)
	if err == nil {
		err = t.write(set, elements(gone), t.conn.SetDeleteElements)
	}
	if err == nil && len(come)+len(gone) == 0 && t.left.Len()+t.growth.Len() > 0 {
		_, err = t.conn.GetSetByName(t.table(), set)
	}
	if err != nil {
		return t.make()
	}
	return nil
}

// write adds elements to a set, or deletes them.
func (t *Table) write(set string, list []nftables.SetElement,
	how func(*nftables.Set, []nftables.SetElement) error) error {
	for some := range slices.Chunk(list, mostOfOne) {
		if err := errors.Join(how(setOf(t.table(), set), some), t.conn.Flush()); err != nil {
			return fmt.Errorf("write the set %s of table %s: %w", set, t.name, err)
		}
	}
	return nil
}

// elements are the pieces of texts.
func elements(texts []string) (list []nftables.SetElement) {
	for _, text := range texts {
		hash := sha256.Sum256([]byte(text))
		key := hash[:keySize]
		key[keySize-1] = 0
		for piece := range slices.Chunk([]byte(text), nft.MaxComment) {
			list = append(list, nftables.SetElement{Key: bytes.Clone(key), Comment: string(piece)})
			key[keySize-1]++
		}
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
		part, ok := strings.CutSuffix(e.Why, "/"+strconv.Itoa(service.WholePart))
		if n, err := strconv.ParseUint(part, 10, 8); ok && err == nil && n > 0 && n < service.WholePart {
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
	slices.SortFunc(list, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	text := ""
	for i, e := range list {
		text += e.Comment
		if len(e.Key) != keySize || i+1 < len(list) && bytes.HasPrefix(list[i+1].Key, e.Key[:keySize-1]) {
			continue // There are more pieces.
		}
		if name, e, ok := parseText(text); ok {
			yield(name, e)
		}
		text = ""
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
