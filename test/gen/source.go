package gen

import "math/rand/v2"

// Rand makes random choices of a fuzzer's bytes, one byte for each choice. After the last
// byte the choices are random, and always the same.
func Rand(data []byte) *rand.Rand {
	return rand.New(&source{data, rand.NewPCG(1, 15)})
}

type source struct {
	data []byte
	rest rand.Source
}

// Uint64 puts the byte into every part of the word that IntN may look at.
func (s *source) Uint64() uint64 {
	if len(s.data) == 0 {
		return s.rest.Uint64()
	}
	b := s.data[0]
	s.data = s.data[1:]
	return uint64(b) * 0x0101010101010101
}

// Seeds returns n inputs of so many random bytes, always the same.
func Seeds(n, size int) [][]byte {
	rng := rand.New(rand.NewPCG(2, 15))
	list := make([][]byte, n)
	for i := range list {
		list[i] = make([]byte, size)
		for j := range list[i] {
			list[i][j] = byte(rng.Uint32())
		}
	}
	return list
}
