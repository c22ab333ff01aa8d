package nft

import (
	"encoding/binary"
	"math/bits"
)

// HashSeed is the seed of every hash in the rules that chooses an endpoint. It is the same on all nodes and for ever: a
// client that comes by another node, or after a restart, gets the same index. ("nftp" in ASCII.)
const HashSeed uint32 = 0x6e667470

// hashIndex is the index below mod that the kernel's expression hash computes (nft_jhash_eval in
// net/netfilter/nft_hash.c): the hash scaled to the range.
func hashIndex(key []byte, mod uint32) uint32 {
	return uint32(uint64(jhash(key, HashSeed)) * uint64(mod) >> 32)
}

// jhash is the kernel's function of the same name (include/linux/jhash.h), which is lookup3 by Bob Jenkins. The
// interpreter has to find the index that the kernel finds, and no library has this variant: it begins
// with other constants than lookup3, and reads whole words in the byte order of the machine.
func jhash(key []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + seed
	b, c := a, a
	for ; len(key) > 12; key = key[12:] {
		a += binary.NativeEndian.Uint32(key)
		b += binary.NativeEndian.Uint32(key[4:])
		c += binary.NativeEndian.Uint32(key[8:])
		a, b, c = jhashMix(a, b, c)
	}
	if len(key) == 0 {
		return c
	}
	var last [12]byte
	copy(last[:], key)
	a += binary.LittleEndian.Uint32(last[0:])
	b += binary.LittleEndian.Uint32(last[4:])
	c += binary.LittleEndian.Uint32(last[8:])
	return jhashFinal(a, b, c)
}

// jhashMix mixes three words reversibly (__jhash_mix).
func jhashMix(a, b, c uint32) (uint32, uint32, uint32) {
	for _, n := range [2][3]int{{4, 6, 8}, {16, 19, 4}} {
		a = (a - c) ^ bits.RotateLeft32(c, n[0])
		c += b
		b = (b - a) ^ bits.RotateLeft32(a, n[1])
		a += c
		c = (c - b) ^ bits.RotateLeft32(b, n[2])
		b += a
	}
	return a, b, c
}

// jhashFinal mixes three words into the hash (__jhash_final).
func jhashFinal(a, b, c uint32) uint32 {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	return (c ^ b) - bits.RotateLeft32(b, 24)
}
