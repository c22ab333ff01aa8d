package nft

import (
	"math/rand/v2"
	"testing"
)

// TestHashIndexSpread: 1,000,000 clients and flows fall on 251 indices as evenly as chance has it, whatever they have
// in common: addresses in a row, ports in a row, addresses of one end.
func TestHashIndexSpread(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const draws, mod = 1_000_000, 251
	for name, key := range map[string]func(i int) []byte{
		"random clients":     func(int) []byte { return randomBytes(rng, 4) },
		"clients in a row":   func(i int) []byte { return []byte{10, byte(i >> 16), byte(i >> 8), byte(i)} },
		"clients of one end": func(i int) []byte { return []byte{byte(i), byte(i >> 8), byte(i >> 16), 7} },
		"IPv6 clients in a row": func(i int) []byte {
			return []byte{0xfd, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}
		},
		"flows": func(i int) []byte { return []byte{10, 1, 2, byte(i >> 16), byte(i >> 8), byte(i), 0, 0} },
		"IPv6 flows": func(i int) []byte {
			return []byte{0xfd, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(i >> 16), byte(i >> 8), byte(i), 0, 0}
		},
	} {
		counts := make([]int, mod)
		for i := range draws {
			counts[hashIndex(key(i), mod)]++
		}
		chi := 0.0
		for _, n := range counts {
			d := float64(n) - float64(draws)/mod
			chi += d * d / (float64(draws) / mod)
		}
		// With 250 degrees of freedom chance exceeds 367 once in a million times.
		t.Logf("%s: chi-squared %.0f", name, chi)
		if chi > 367 {
			t.Errorf("%s: chi-squared %.0f with 250 degrees of freedom: not even", name, chi)
		}
	}
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}
