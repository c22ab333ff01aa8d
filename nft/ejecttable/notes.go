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
// the number of the piece. growing has a share such as "1/4" in place of a reason.
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

func sets() []string { return []string{leftOut, growing} }

func setOf(table *nftables.Table, name string) *nftables.Set {
	return &nftables.Set{Table: table, Name: name, KeyType: nftables.TypeIP6Addr, Size: mostElements}
}

// Set replaces the adjustments. There are several transactions if much of it is new. If nothing has changed, it looks
// whether another program has removed what is there.
func (t *Table) Set(a service.Adjustments) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.told
	t.told = a
	switch {
	case t.conn == nil && a.Len() == 0 && !t.hears:
		return nil
	case t.conn == nil:
		return t.open() // It replaces what an earlier process has left.
	}
	for _, set := range sets() {
		if t.change(set, differences(before, a, set), differences(a, before, set)) != nil {
			return t.make()
		}
	}
	return nil
}

// differences are the texts of a set that only the second one of two has.
func differences(old, next service.Adjustments, set string) (texts []string) {
	for c := range treap.Diff(old, next) {
		was := map[string]bool{}
		for _, a := range of(c.Old, set) {
			was[noteText(c.Key, a)] = true
		}
		for _, a := range of(c.New, set) {
			if text := noteText(c.Key, a); !was[text] {
				texts = append(texts, text)
			}
		}
	}
	return texts
}

// of returns the adjustments that a set has.
func of(list *service.Adjusted, set string) (has []service.Adjustment) {
	for _, a := range list.All() {
		if (a.Share == service.NoShare) == (set == leftOut) {
			has = append(has, a)
		}
	}
	return has
}

// change writes what has come and removes what has gone. If nothing has, it looks whether the set is there.
func (t *Table) change(set string, come, gone []string) error {
	if len(come)+len(gone) == 0 && t.told.Len() > 0 {
		_, err := t.conn.GetSetByName(t.table(), set)
		return err
	}
	return errors.Join(t.write(set, elements(come), t.conn.SetAddElements),
		t.write(set, elements(gone), t.conn.SetDeleteElements))
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

func noteText(name service.Name, a service.Adjustment) string {
	why := a.Why
	if a.Share != service.NoShare {
		why = a.Share.String()
	}
	text := fmt.Sprintf("%s %s %d %s %d %s", name, a.Protocol, a.Port, a.Addr, a.Since.Unix(), strings.Map(printable, why))
	return text[:min(len(text), pieces*nft.MaxComment)]
}

// printable replaces what a comment of nft must not have.
func printable(r rune) rune {
	if r < ' ' || r > '~' || r == '"' {
		return '?'
	}
	return r
}

// Read returns what a process has Set in the table beside the tables of Services with that name, in the network
// namespace of the calling thread. There is nothing if there is no such table. What another program has written there
// is left out.
func Read(services string) (adjustments service.Adjustments, err error) {
	conn, err := nftables.New()
	if err != nil {
		return adjustments, fmt.Errorf("open nftables: %w", err)
	}
	of := map[service.Name][]service.Adjustment{}
	for _, set := range sets() {
		texts, err := read(conn, Name(services), set)
		if err != nil {
			return adjustments, fmt.Errorf("read table %s: %w", Name(services), err)
		}
		for _, text := range texts {
			if name, a, ok := parseText(text, set); ok {
				of[name] = append(of[name], a)
			}
		}
	}
	for name, list := range of {
		adjustments = adjustments.Set(name, service.NewAdjusted(list))
	}
	return adjustments, nil
}

// read returns the texts of a set.
func read(conn *nftables.Conn, table, set string) (texts []string, err error) {
	list, err := conn.GetSetElements(setOf(&nftables.Table{Family: nftables.TableFamilyINet, Name: table}, set))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	text := ""
	for i, e := range list {
		text += e.Comment
		if len(e.Key) != keySize || i+1 < len(list) && bytes.HasPrefix(list[i+1].Key, e.Key[:keySize-1]) {
			continue // There are more pieces.
		}
		texts, text = append(texts, text), ""
	}
	return texts, nil
}

// parseText reads what noteText writes into a set.
func parseText(text, set string) (name service.Name, a service.Adjustment, ok bool) {
	fields := strings.SplitN(text, " ", 6)
	if len(fields) < 6 {
		return "", a, false
	}
	protocol, protocolErr := service.ParseProtocol(fields[1])
	port, portErr := strconv.ParseUint(fields[2], 10, 16)
	addr, addrErr := netip.ParseAddrPort(fields[3])
	since, sinceErr := strconv.ParseInt(fields[4], 10, 64)
	a.PortEndpoint = service.PortEndpoint{Protocol: protocol, Port: uint16(port), Addr: addr}
	a.Since, a.Share, a.Why = time.Unix(since, 0), service.NoShare, fields[5]
	if set == growing {
		a.Share, ok = service.ParseShare(a.Why)
		if a.Why = ""; !ok || a.Share == service.NoShare {
			return "", a, false
		}
	}
	return service.Name(fields[0]), a, errors.Join(protocolErr, portErr, addrErr, sinceErr) == nil
}
