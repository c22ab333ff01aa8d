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

// noted is the name of the set. It has a text for each endpoint, "shop/web TCP 80 10.0.0.1:8080 1795694587 0/4 5
// connections without answer", as comments of up to nft.MaxComment bytes: an element's key is a hash of the text, and
// its last byte the number of the piece. One that is growing has another share and no reason.
const noted = "endpoints"

const (
	keySize, pieces = 16, 1 << 8
	// mostOfOne is how many elements one message may have: an attribute has at most 64 KiB.
	mostOfOne = 256
	// mostElements is the size of the set: 256 kB. The kernel does not make a set with a size larger, which would hide
	// elements from a reader meanwhile. Endpoints beyond it are not shown.
	mostElements = 1 << 14
)

func setOf(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: noted, KeyType: nftables.TypeIP6Addr, Size: mostElements}
}

// Set replaces the adjustments. There are several transactions if much of it is new. What another program has removed
// is made anew.
func (t *Table) Set(a service.Adjustments) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.told
	t.told = a
	if !t.made && a.Len() == 0 && !t.hears {
		return nil
	}
	_, err := t.conn.GetSetByName(t.table, noted)
	if !t.made || err != nil || errors.Join(t.write(elements(differences(before, a)), t.conn.SetAddElements),
		t.write(elements(differences(a, before)), t.conn.SetDeleteElements)) != nil {
		return t.make()
	}
	return nil
}

// differences are the texts that only the second one of two has.
func differences(old, next service.Adjustments) (texts []string) {
	for c := range treap.Diff(old, next) {
		was := map[string]bool{}
		for _, a := range c.Old.All() {
			was[noteText(c.Key, a)] = true
		}
		for _, a := range c.New.All() {
			if text := noteText(c.Key, a); !was[text] {
				texts = append(texts, text)
			}
		}
	}
	return texts
}

// write adds elements, or deletes them.
func (t *Table) write(list []nftables.SetElement, how func(*nftables.Set, []nftables.SetElement) error) error {
	for some := range slices.Chunk(list, mostOfOne) {
		if err := errors.Join(how(setOf(t.table), some), t.conn.Flush()); err != nil {
			return fmt.Errorf("write the set %s of table %s: %w", noted, t.table.Name, err)
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
	text := fmt.Sprintf("%s %s %d %s %d %s %s", name, a.Protocol, a.Port, a.Addr, a.Since.Unix(), a.Share,
		strings.Map(printable, a.Why))
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
	var conn nftables.Conn
	list, err := conn.GetSetElements(setOf(tableOf(services)))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return adjustments, fmt.Errorf("read table %s: %w", Name(services), err)
	}
	of := map[service.Name][]service.Adjustment{}
	for _, text := range texts(list) {
		if name, a, ok := parseText(text); ok {
			of[name] = append(of[name], a)
		}
	}
	for name, list := range of {
		adjustments = adjustments.Set(name, service.NewAdjusted(list))
	}
	return adjustments, nil
}

// texts puts pieces together.
func texts(list []nftables.SetElement) (texts []string) {
	slices.SortFunc(list, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	text := ""
	for i, e := range list {
		text += e.Comment
		if len(e.Key) != keySize || i+1 < len(list) && bytes.HasPrefix(list[i+1].Key, e.Key[:keySize-1]) {
			continue // There are more pieces.
		}
		texts, text = append(texts, text), ""
	}
	return texts
}

// parseText reads what noteText writes.
func parseText(text string) (name service.Name, a service.Adjustment, ok bool) {
	fields := strings.SplitN(text, " ", 7)
	if len(fields) < 7 {
		return "", a, false
	}
	protocol, protocolErr := service.ParseProtocol(fields[1])
	port, portErr := strconv.ParseUint(fields[2], 10, 16)
	addr, addrErr := netip.ParseAddrPort(fields[3])
	since, sinceErr := strconv.ParseInt(fields[4], 10, 64)
	share, ok := service.ParseShare(fields[5])
	a.PortEndpoint = service.PortEndpoint{Protocol: protocol, Port: uint16(port), Addr: addr}
	a.Share, a.Since, a.Why = share, time.Unix(since, 0), fields[6]
	return service.Name(fields[0]), a, ok && errors.Join(protocolErr, portErr, addrErr, sinceErr) == nil
}
