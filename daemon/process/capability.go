package process

import (
	"fmt"
	"math/bits"
	"strings"

	"golang.org/x/sys/unix"
)

// Capabilities is a set of capabilities: bit n stands for capability n, as in /proc/PID/status.
type Capabilities uint64

// CapabilitiesOf makes a set.
func CapabilitiesOf(capabilities ...int) Capabilities {
	s := Capabilities(0)
	for _, c := range capabilities {
		s |= 1 << c
	}
	return s
}

// Has says whether a capability is in the set.
func (s Capabilities) Has(capability int) bool { return s&(1<<capability) != 0 }

// Without returns the members that another set does not have.
func (s Capabilities) Without(other Capabilities) Capabilities { return s &^ other }

// Len is the number of members.
func (s Capabilities) Len() int { return bits.OnesCount64(uint64(s)) }

// members lists the capabilities by number.
func (s Capabilities) members() []int {
	var list []int
	for c := range 64 {
		if s.Has(c) {
			list = append(list, c)
		}
	}
	return list
}

// String names what run keeps. It gives the numbers of the others.
func (s Capabilities) String() string {
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
