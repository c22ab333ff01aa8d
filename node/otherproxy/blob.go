package otherproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
)

// hooks is the number of hooks of netfilter (NF_INET_NUMHOOKS).
const hooks = 5

// blob is a table of the kernel's older interface: the entries of all its chains, one after the
// other, as struct ipt_entry or ip6t_entry of uapi/linux/netfilter_ipv4/ip_tables.h.
type blob struct {
	family       ip.Family
	name         string
	valid        uint32
	hook, policy [hooks]uint32
	entries      []entry
}

// entry is one rule, or the head of a chain.
type entry struct {
	raw   []byte
	at    uint32 // its offset in the table
	chain string
	// head says that the entry is the head of a chain: a target ERROR with the chain's name.
	head bool
	// target is the chain to which the rule jumps or goes, or empty. extension is the target of
	// iptables that it has instead, such as REJECT, or empty.
	target, extension, comment string
	// verdict is where the offset of a jump is in raw, or 0. drops and accepts say that the verdict is that.
	verdict        int
	drops, accepts bool
}

// Offsets in an entry, and its size without matches and target. They are the same on amd64 and
// arm64: a struct ipt_ip has 84 bytes, a struct ip6t_ip6 has 136.
func entryLayout(f ip.Family) (targetOffset, size int) {
	if f == ip.V6 {
		return 140, 168
	}
	return 88, 112
}

// takesAll says that the rule compares nothing: not an address, and by no match.
func (e *entry) takesAll(f ip.Family) bool {
	targetOffset, size := entryLayout(f)
	compared := targetOffset - 4 // before it are nfcache and, behind, the offset itself
	return int(binary.NativeEndian.Uint16(e.raw[targetOffset:])) == size && !slices.ContainsFunc(e.raw[:compared],
		func(b byte) bool { return b != 0 })
}

// A struct xt_entry_match and a struct xt_entry_target begin with their size (16 bits) and a
// name of 29 bytes; their data begins at xtHeader.
const (
	xtName   = 2
	xtHeader = 32
)

// errMalformed should not happen: the kernel has checked each table.
var errMalformed = errors.New("malformed table")

// parseEntries splits the entries of a table.
func (b *blob) parseEntries(data []byte) error {
	targetAt, least := entryLayout(b.family)
	byOffset := map[uint32]int{}
	chain, hookOf := "", b.hookNames()
	for at := 0; at < len(data); {
		if len(data)-at < least {
			return errMalformed
		}
		next := int(binary.NativeEndian.Uint16(data[at+targetAt+2:]))
		if next < least || next > len(data)-at {
			return errMalformed
		}
		e := entry{raw: bytes.Clone(data[at : at+next]), at: uint32(at)}
		if err := e.parse(b.family); err != nil {
			return err
		}
		if name, found := hookOf[e.at]; found {
			chain = name
		}
		if e.head {
			chain = e.chain
		}
		e.chain = chain
		byOffset[e.at] = len(b.entries)
		b.entries = append(b.entries, e)
		at += next
	}
	for i := range b.entries {
		e := &b.entries[i]
		if e.verdict == 0 {
			continue
		}
		// A jump leads to the entry after the head. A rule without a verdict has one too, to the
		// entry after itself.
		to, found := byOffset[e.jumpsTo()]
		if !found {
			return errMalformed
		}
		if to > 0 && b.entries[to-1].head && to != i+1 {
			e.target = b.entries[to].chain
		}
	}
	return nil
}

// hookNames returns the names of the chains of iptables itself by the offsets of their first
// entries.
func (b *blob) hookNames() map[uint32]string {
	names := map[uint32]string{}
	for i, name := range builtinChains() {
		if b.valid&(1<<i) != 0 {
			names[b.hook[i]] = name
		}
	}
	return names
}

// parse reads the comment and the target of an entry.
func (e *entry) parse(f ip.Family) error {
	targetAt, matches := entryLayout(f)
	target := int(binary.NativeEndian.Uint16(e.raw[targetAt:]))
	if target < matches || target+xtHeader > len(e.raw) {
		return errMalformed
	}
	for at := matches; at < target; {
		size := int(binary.NativeEndian.Uint16(e.raw[at:]))
		if size < xtHeader || size > target-at {
			return errMalformed
		}
		if unix.ByteSliceToString(e.raw[at+xtName:at+xtHeader-1]) == "comment" {
			e.comment = unix.ByteSliceToString(e.raw[at+xtHeader : at+size])
		}
		at += size
	}
	switch name := unix.ByteSliceToString(e.raw[target+xtName : target+xtHeader-1]); name {
	default:
		e.extension = name
	case "ERROR":
		e.head, e.chain = true, unix.ByteSliceToString(e.raw[target+xtHeader:])
	case "": // a verdict: an offset, or a negative number for accept, drop and return
		if target+xtHeader+4 > len(e.raw) {
			return errMalformed
		}
		const drop, accept = -1, -2 // -NF_DROP - 1, -NF_ACCEPT - 1
		verdict := int32(binary.NativeEndian.Uint32(e.raw[target+xtHeader:]))
		e.accepts = verdict == accept
		if e.drops = verdict == drop; verdict >= 0 {
			e.verdict = target + xtHeader
		}
	}
	return nil
}

func (e *entry) jumpsTo() uint32 { return binary.NativeEndian.Uint32(e.raw[e.verdict:]) }

// without returns the table without the entries that drop names, and for each entry that stays
// its number in b. Offsets of jumps and hooks are those of the new table.
func (b *blob) without(drop func(*entry) bool) (*blob, []int, error) {
	after := *b
	after.entries = nil
	var kept []int
	moved := map[uint32]uint32{} // by the old offset; of a dropped entry that of the next one kept
	at := uint32(0)
	for i := range b.entries {
		e := b.entries[i]
		moved[e.at] = at
		if drop(&e) {
			continue
		}
		e.raw, e.at = bytes.Clone(e.raw), at
		after.entries, kept = append(after.entries, e), append(kept, i)
		at += uint32(len(e.raw))
	}
	for i := range after.entries {
		if e := &after.entries[i]; e.verdict != 0 {
			to, found := moved[e.jumpsTo()]
			if !found {
				return nil, nil, errMalformed
			}
			binary.NativeEndian.PutUint32(e.raw[e.verdict:], to)
		}
	}
	for i := range hooks {
		if b.valid&(1<<i) == 0 {
			continue
		}
		hook, foundHook := moved[b.hook[i]]
		policy, foundPolicy := moved[b.policy[i]]
		if !foundHook || !foundPolicy {
			return nil, nil, errMalformed
		}
		after.hook[i], after.policy[i] = hook, policy
	}
	return &after, kept, nil
}

// size is the length of all entries in bytes.
func (b *blob) size() uint32 {
	n := 0
	for _, e := range b.entries {
		n += len(e.raw)
	}
	return uint32(min(n, math.MaxInt32))
}

func tableName(f ip.Family, name string) string { return fmt.Sprintf("%s %s", f, name) }
