package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// Entry is an element that a rule has added to a dynamic map.
type Entry struct {
	Key, Data nft.Value
	// Timeout is how long the entry stays after its last update, and Expires how much of
	// that is left, 0 in its last moment. Both are 0 in an entry that stays for ever.
	Timeout, Expires time.Duration
}

// Learned returns the entries of a dynamic map in no order, and none if there is no such
// table or map. Some may be missing while rules add many.
func (c *Conn) Learned(table nft.TableID, set *nft.Set) ([]Entry, error) {
	for pass := 1; ; pass++ {
		var all []Entry
		complete, err := c.dumpEntries(table, set, func(e Entry) error {
			all = append(all, e)
			return nil
		})
		if complete || err != nil || pass == sweepPasses {
			return all, err
		}
	}
}

// LearnedBy returns the entry with the key of a dynamic map or set; ok is false if there is none.
// The kernel looks it up, so a map of many entries costs no more than a small one.
func (c *Conn) LearnedBy(table nft.TableID, set *nft.Set, key nft.Value) (entry Entry, ok bool, err error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	request, err := elementsWith(table, set, []nft.Value{key})
	if err != nil {
		return entry, false, fmt.Errorf("look up in map %s %s: %w", table, set.Name, err)
	}
	attrs, err := c.reader.Get(unix.NFT_MSG_GETSETELEM, uint8(table.Family), request.B)
	switch {
	case errors.Is(err, unix.ENOENT):
		return entry, false, nil
	case err != nil:
		return entry, false, fmt.Errorf("look up in map %s %s: %w", table, set.Name, err)
	}
	for _, found := range attrs.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS).All() {
		if entry, err = decodeEntry(found, shapeOf(set, table.Family)); err != nil {
			return entry, false, fmt.Errorf("look up in map %s %s: %w", table, set.Name, err)
		}
		return entry, true, nil
	}
	return entry, false, nil
}

// dumpEntries visits each entry once, until a visit fails. The dump is not complete if the kernel gave some entries
// twice: it finds its place in a hash by counting, and leaves out others after it has resized the hash.
func (c *Conn) dumpEntries(table nft.TableID, set *nft.Set, visit func(Entry) error) (complete bool, err error) {
	c.sweeper.Lock()
	defer c.sweeper.Unlock()
	shape := shapeOf(set, table.Family)
	seed := maphash.MakeSeed()
	seen := map[uint64]struct{}{} // hashes of keys; the keys themselves would take tens of MB
	count := 0
	err = c.sweeper.Receive(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, uint8(table.Family), elementsOf(table, set).B,
		func(m nfnetlink.Message) error {
			for _, attrs := range m.Attributes().Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS).All() {
				entry, err := decodeEntry(attrs, shape)
				if err != nil {
					return err
				}
				count++
				hash := maphash.String(seed, string(entry.Key))
				if _, again := seen[hash]; !again {
					seen[hash] = struct{}{}
					if err := visit(entry); err != nil {
						return err // the rest of the dump is drained before the next
					}
				}
			}
			return nil
		})
	switch {
	case errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.EINTR): // by a foreign transaction
		return false, nil
	case err != nil:
		return false, fmt.Errorf("dump map %s %s: %w", table, set.Name, err)
	}
	return count == len(seen), nil
}

// errOtherShape should not happen: Read finds a map that is declared otherwise.
var errOtherShape = errors.New("the map is declared otherwise")

func decodeEntry(attrs nfnetlink.Attributes, shape setShape) (Entry, error) {
	key, okKey := paddedValue(attrs.Get(unix.NFTA_SET_ELEM_KEY), shape.keyKernel, shape.key)
	data, okData := nft.Value(""), true
	if shape.data > 0 {
		data, okData = paddedValue(attrs.Get(unix.NFTA_SET_ELEM_DATA), shape.dataKernel, shape.data)
	}
	if !okKey || !okData {
		return Entry{}, errOtherShape
	}
	return Entry{
		Key: key, Data: data,
		Timeout: milliseconds(attrs.Get(unix.NFTA_SET_ELEM_TIMEOUT)),
		Expires: milliseconds(attrs.Get(unix.NFTA_SET_ELEM_EXPIRATION)),
	}, nil
}

// paddedValue is an NFTA_DATA_VALUE with the length that a Value has.
func paddedValue(nested nfnetlink.Attributes, size, padded int) (nft.Value, bool) {
	v := nested.Get(unix.NFTA_DATA_VALUE)
	if len(v) != size {
		return "", false
	}
	return nft.Value(append(v[:size:size], make([]byte, padded-size)...)), true
}

func milliseconds(v []byte) time.Duration {
	if len(v) != 8 {
		return 0
	}
	return time.Duration(binary.BigEndian.Uint64(v)) * time.Millisecond
}
