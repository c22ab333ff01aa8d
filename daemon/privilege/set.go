package privilege

import (
	"fmt"
	"math/bits"
	"strings"

	"golang.org/x/sys/unix"
)

// Set is a set of capabilities: bit n stands for capability n, as in /proc/PID/status.
type Set uint64

// Of makes a set.
func Of(capabilities ...int) Set {
	s := Set(0)
	for _, c := range capabilities {
		s |= 1 << c
	}
	return s
}

// Has says whether a capability is in the set.
func (s Set) Has(capability int) bool { return s&(1<<capability) != 0 }

// Without returns the members that another set does not have.
func (s Set) Without(other Set) Set { return s &^ other }

// Len is the number of members.
func (s Set) Len() int { return bits.OnesCount64(uint64(s)) }

// members lists the capabilities by number.
func (s Set) members() []int {
	var list []int
	for c := range 64 {
		if s.Has(c) {
			list = append(list, c)
		}
	}
	return list
}

// String names what run keeps. It gives the numbers of the others.
func (s Set) String() string {
	names := map[int]string{unix.CAP_NET_ADMIN: "NET_ADMIN", unix.CAP_NET_BIND_SERVICE: "NET_BIND_SERVICE"}
	var words []string
	for _, c := range s.members() {
		name := names[c]
		if name == "" {
			name = fmt.Sprint(c)
		}
		words = append(words, name)
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, " ")
}
